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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/compact"
	"github.com/prebind/prebind/binder/framework"
)

// nodeField is the field of pods and VolumeAttachments that names their node.
const nodeField = "spec.nodeName"

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

// packed is what the cache holds instead of an object. unpack keeps strings that many objects share as
// unique.Handle.
type packed struct {
	namespace     unique.Handle[string]
	name, version string
	unpack        func(metav1.ObjectMeta) client.Object
}

var _ compact.Object = (*packed)(nil)

func pack(o metav1.Object, unpack func(metav1.ObjectMeta) client.Object) *packed {
	return &packed{namespace: unique.Make(o.GetNamespace()), name: o.GetName(), version: o.GetResourceVersion(), unpack: unpack}
}

// GetObjectMeta implements compact.Object.
func (p *packed) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: p.namespace.Value(), Name: p.name, ResourceVersion: p.version}
}

// Unpack implements compact.Object.
func (p *packed) Unpack() client.Object {
	return p.unpack(metav1.ObjectMeta{Namespace: p.namespace.Value(), Name: p.name, ResourceVersion: p.version})
}

// packAgent keeps the node, the owner and the readiness of a pod.
func packAgent(o any) (any, error) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	var owner types.UID
	if controller := metav1.GetControllerOfNoCopy(pod); controller != nil {
		owner = controller.UID
	}
	nodeName, ownerUID, ready := unique.Make(pod.Spec.NodeName), unique.Make(owner), isReady(pod)
	return pack(pod, func(m metav1.ObjectMeta) client.Object {
		m.OwnerReferences = []metav1.OwnerReference{{UID: ownerUID.Value(), Controller: new(true)}}
		pod := &corev1.Pod{ObjectMeta: m, Spec: corev1.PodSpec{NodeName: nodeName.Value()}}
		if ready {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}
		return pod
	}), nil
}

// packAttachment keeps the driver, the node and the volume.
func packAttachment(o any) (any, error) {
	a, ok := o.(*storagev1.VolumeAttachment)
	if !ok {
		return o, nil
	}
	driver, nodeName, volume := unique.Make(a.Spec.Attacher), unique.Make(a.Spec.NodeName), a.Spec.Source.PersistentVolumeName
	return pack(a, func(m metav1.ObjectMeta) client.Object {
		return &storagev1.VolumeAttachment{ObjectMeta: m, Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driver.Value(), NodeName: nodeName.Value(), Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: volume},
		}}
	}), nil
}
