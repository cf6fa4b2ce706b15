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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/compact"
)

// nodeField is the field of pods and VolumeAttachments that names their node.
const nodeField = "spec.nodeName"

// attachments selects all VolumeAttachments, by node. The API server does not know the field, so
// only the cached reader can list them.
var attachments = framework.Selection{
	Name: Name + "/attachments", Example: &storagev1.VolumeAttachment{}, Value: nodeOf, Transform: compact.Transform(packAttachment),
}

// daemons selects the DaemonSets of the agent's namespace.
func (a *agent) daemons() framework.Selection {
	return framework.Selection{Name: Name + "/daemonsets/" + a.namespace, Example: &appsv1.DaemonSet{}, Namespace: a.namespace}
}

// pods selects the agent's pods on nodes.
func (a *agent) pods() framework.Selection {
	return framework.Selection{
		Name: Name + "/agent/" + a.namespace + "/" + a.podsSelector.String(), Example: &corev1.Pod{}, Namespace: a.namespace, Labels: a.podsSelector,
		Fields: fields.OneTermNotEqualSelector(nodeField, ""), Value: nodeOf, Transform: compact.Transform(packAgent),
	}
}

// nodeOf returns the value of nodeField.
func nodeOf(o client.Object) string {
	switch o := o.(type) {
	case *corev1.Pod:
		return o.Spec.NodeName
	case *storagev1.VolumeAttachment:
		return o.Spec.NodeName
	default:
		return ""
	}
}

// packAgent keeps the node and the owner of a pod that is ready, and hides all other pods.
func packAgent(pod *corev1.Pod) *compact.Object {
	controller := metav1.GetControllerOfNoCopy(pod)
	if controller == nil || !isReady(pod) {
		return compact.Hide(pod)
	}
	node, owner := unique.Make(pod.Spec.NodeName), unique.Make(controller.UID)
	return compact.Pack(pod, func(m metav1.ObjectMeta) client.Object {
		m.OwnerReferences = []metav1.OwnerReference{{UID: owner.Value(), Controller: new(true)}}
		ready := []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		return &corev1.Pod{ObjectMeta: m, Spec: corev1.PodSpec{NodeName: node.Value()}, Status: corev1.PodStatus{Conditions: ready}}
	})
}

// packAttachment keeps the driver, the node and the volume.
func packAttachment(a *storagev1.VolumeAttachment) *compact.Object {
	driver, node, volume := unique.Make(a.Spec.Attacher), unique.Make(a.Spec.NodeName), a.Spec.Source.PersistentVolumeName
	return compact.Pack(a, func(m metav1.ObjectMeta) client.Object {
		return &storagev1.VolumeAttachment{ObjectMeta: m, Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driver.Value(), NodeName: node.Value(), Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: volume},
		}}
	})
}
