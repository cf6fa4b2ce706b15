// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeready

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// nodeField is the field of pods and VolumeAttachments that names their node.
const nodeField = "spec.nodeName"

// attachments selects all VolumeAttachments, by node. The API server does not know the field, so
// only the cached reader can list them.
var attachments = framework.Selection{
	Name: Name + "/attachments", Example: &storagev1.VolumeAttachment{}, Value: nodeOf, Transform: framework.Transform(trimAttachment),
}

// daemons selects the DaemonSets of the agent's namespace.
func (a *agent) daemons() framework.Selection {
	return framework.Selection{Name: Name + "/daemonsets/" + a.namespace, Example: &appsv1.DaemonSet{}, Namespace: a.namespace}
}

// pods selects the agent's pods on nodes.
func (a *agent) pods() framework.Selection {
	return framework.Selection{
		Name: Name + "/agent/" + a.namespace + "/" + a.podsSelector.String(), Example: &corev1.Pod{}, Namespace: a.namespace, Labels: a.podsSelector,
		Fields: fields.OneTermNotEqualSelector(nodeField, ""), Value: nodeOf, Transform: framework.Transform(trimAgent),
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

// trimAgent keeps the node, its address and the owner of a pod that is ready. All other pods have no node, so that no list by a node has them.
func trimAgent(pod *corev1.Pod) *corev1.Pod {
	trimmed := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, ResourceVersion: pod.ResourceVersion}}
	if controller := metav1.GetControllerOfNoCopy(pod); controller != nil && isReady(pod) {
		trimmed.OwnerReferences = []metav1.OwnerReference{{UID: controller.UID, Controller: new(true)}}
		trimmed.Spec.NodeName = pod.Spec.NodeName
		trimmed.Status.HostIP = pod.Status.HostIP
		trimmed.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	return trimmed
}

// trimAttachment keeps the driver, the node and the volume.
func trimAttachment(a *storagev1.VolumeAttachment) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: a.Name, ResourceVersion: a.ResourceVersion},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: a.Spec.Attacher, NodeName: a.Spec.NodeName,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: a.Spec.Source.PersistentVolumeName},
		},
	}
}
