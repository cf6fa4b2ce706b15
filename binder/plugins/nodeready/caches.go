// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeready

import (
	"unique"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/compact"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/volumes"
)

// nodeField is the field of pods and VolumeAttachments that names their node.
const nodeField = "spec.nodeName"

// caches returns the kinds of which the cache holds only a part. A cluster has one CSINode per node.
func caches(namespace string) map[client.Object]cache.ByObject {
	all := volumes.Caches(namespace)
	all[&storagev1.CSINode{}] = cache.ByObject{Transform: packNode}
	return all
}

// attachments selects all VolumeAttachments, by node. The API server does not know the field, so
// only the cached reader can list them.
var attachments = framework.Selection{
	Name: Name + "/attachments", Example: &storagev1.VolumeAttachment{}, Field: nodeField, Transform: packAttachment,
	Value: func(o client.Object) string {
		if a, ok := o.(*storagev1.VolumeAttachment); ok {
			return a.Spec.NodeName
		}
		return ""
	},
}

// daemonsOf selects the DaemonSets of the namespace.
func daemonsOf(namespace string) framework.Selection {
	return framework.Selection{
		Name: Name + "/daemonsets/" + namespace, Example: &appsv1.DaemonSet{}, Namespace: namespace, Transform: trimDaemonSet,
		Field: "metadata.namespace", Value: client.Object.GetNamespace,
	}
}

// podsOf selects the pods on nodes.
func podsOf(namespace string, selector labels.Selector) framework.Selection {
	return framework.Selection{
		Name: Name + "/agent/" + namespace + "/" + selector.String(), Example: &corev1.Pod{}, Namespace: namespace, Labels: selector,
		Fields: fields.OneTermNotEqualSelector(nodeField, ""), Field: nodeField, Transform: packAgent,
		Value: func(o client.Object) string {
			if pod, ok := o.(*corev1.Pod); ok {
				return pod.Spec.NodeName
			}
			return ""
		},
	}
}

// trimDaemonSet keeps the fields that shouldRun reads, and the labels of the pods.
func trimDaemonSet(o any) (any, error) {
	ds, ok := o.(*appsv1.DaemonSet)
	if !ok {
		return o, nil
	}
	from := ds.Spec.Template
	trimmed := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: ds.Namespace, Name: ds.Name, UID: ds.UID, ResourceVersion: ds.ResourceVersion, DeletionTimestamp: ds.DeletionTimestamp,
	}}
	trimmed.Spec.Template.Labels = from.Labels
	trimmed.Spec.Template.Spec = corev1.PodSpec{
		NodeName: from.Spec.NodeName, NodeSelector: from.Spec.NodeSelector, Tolerations: from.Spec.Tolerations, HostNetwork: from.Spec.HostNetwork,
	}
	if a := from.Spec.Affinity; a != nil {
		trimmed.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: a.NodeAffinity}
	}
	return trimmed, nil
}

// csiNode is what the cache holds of a CSINode. Nodes of the same kind share drivers and migrated.
type csiNode struct {
	name, version string
	// drivers is an encoded CSINodeSpec with the names of the drivers and their limits.
	drivers unique.Handle[string]
	// migrated is the annotation with the in-tree plugins that were migrated to CSI.
	migrated unique.Handle[string]
}

// agentPod is what the cache holds of the pod of an agent.
type agentPod struct {
	namespace, node unique.Handle[string]
	owner           unique.Handle[types.UID]
	name, version   string
	ready           bool
}

// attachment is what the cache holds of a VolumeAttachment.
type attachment struct {
	driver, node          unique.Handle[string]
	name, version, volume string
}

var (
	_ compact.Object = (*csiNode)(nil)
	_ compact.Object = (*agentPod)(nil)
	_ compact.Object = (*attachment)(nil)
)

func packNode(o any) (any, error) {
	from, ok := o.(*storagev1.CSINode)
	if !ok {
		return o, nil
	}
	var spec storagev1.CSINodeSpec
	for _, d := range from.Spec.Drivers {
		spec.Drivers = append(spec.Drivers, storagev1.CSINodeDriver{Name: d.Name, Allocatable: d.Allocatable})
	}
	drivers, err := spec.Marshal()
	if err != nil {
		return o, nil //nolint:nilerr // The unpacked form is correct, too.
	}
	return &csiNode{
		name: from.Name, version: from.ResourceVersion, drivers: unique.Make(string(drivers)),
		migrated: unique.Make(from.Annotations[corev1.MigratedPluginsAnnotationKey]),
	}, nil
}

// GetObjectMeta implements compact.Object.
func (n *csiNode) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Name: n.name, ResourceVersion: n.version}
}

// Unpack implements compact.Object.
func (n *csiNode) Unpack() client.Object {
	node := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: n.name, ResourceVersion: n.version}}
	if err := node.Spec.Unmarshal([]byte(n.drivers.Value())); err != nil {
		return nil // A look through the live reader finds it.
	}
	if migrated := n.migrated.Value(); migrated != "" {
		node.Annotations = map[string]string{corev1.MigratedPluginsAnnotationKey: migrated}
	}
	return node
}

func packAgent(o any) (any, error) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	var owner types.UID
	if controller := metav1.GetControllerOfNoCopy(pod); controller != nil {
		owner = controller.UID
	}
	return &agentPod{
		namespace: unique.Make(pod.Namespace), node: unique.Make(pod.Spec.NodeName), owner: unique.Make(owner),
		name: pod.Name, version: pod.ResourceVersion, ready: isReady(pod),
	}, nil
}

// GetObjectMeta implements compact.Object.
func (p *agentPod) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: p.namespace.Value(), Name: p.name, ResourceVersion: p.version}
}

// Unpack implements compact.Object.
func (p *agentPod) Unpack() client.Object {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.namespace.Value(), Name: p.name, ResourceVersion: p.version,
			OwnerReferences: []metav1.OwnerReference{{UID: p.owner.Value(), Controller: new(true)}},
		},
		Spec: corev1.PodSpec{NodeName: p.node.Value()},
	}
	if p.ready {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	return pod
}

func packAttachment(o any) (any, error) {
	from, ok := o.(*storagev1.VolumeAttachment)
	if !ok {
		return o, nil
	}
	a := &attachment{
		driver: unique.Make(from.Spec.Attacher), node: unique.Make(from.Spec.NodeName), name: from.Name, version: from.ResourceVersion,
	}
	if volume := from.Spec.Source.PersistentVolumeName; volume != nil {
		a.volume = *volume
	}
	return a, nil
}

// GetObjectMeta implements compact.Object.
func (a *attachment) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Name: a.name, ResourceVersion: a.version}
}

// Unpack implements compact.Object.
func (a *attachment) Unpack() client.Object {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: a.name, ResourceVersion: a.version},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: a.driver.Value(), NodeName: a.node.Value(),
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &a.volume},
		},
	}
}
