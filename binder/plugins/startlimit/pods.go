// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package startlimit

import (
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/compact"
	"github.com/prebind/prebind/binder/framework"
)

// isStarting returns whether a bound pod counts until its start times out. A pod whose container
// waits for the kubelet's next try, for example because its image does not exist, uses nothing of
// the node. Only the kubelet writes this status.
func isStarting(pod *corev1.Pod) bool {
	if pod.Status.Phase != corev1.PodPending || pod.DeletionTimestamp != nil || framework.IsSystemPod(pod) {
		return false
	}
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range statuses {
			if waits := statuses[i].State.Waiting; waits != nil && isStuck(waits.Reason) {
				return false
			}
		}
	}
	return true
}

// isStuck returns whether a container with the reason waits for the kubelet's next try. The reasons
// are those of ErrImagePullBackOff and its neighbors in k8s.io/kubernetes/pkg/kubelet/images and
// pkg/kubelet/kuberuntime.
func isStuck(reason string) bool {
	switch reason {
	case "ImagePullBackOff", "CrashLoopBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError":
		return true
	default:
		return false
	}
}

// isRefusal returns whether the kubelet refused the pod for this status.reason, and the cause can be
// the node. The reasons are those of admissionRejectionReasons in k8s.io/kubernetes/pkg/kubelet, and
// the names of predicates in pkg/kubelet/lifecycle. Reasons that only the pod causes, such as
// SysctlForbidden, are not included, because every node would refuse the pod. Evicted is not
// included, because it is also the reason of pods that ran.
func isRefusal(reason string) bool {
	switch reason {
	case "UnexpectedAdmissionError", "UnknownReason", "UnexpectedPredicateFailureType", "InvalidNodeInfo", "NodeAffinity", "NodePorts",
		"TaintToleration", "TopologyAffinityError", "NodeShutdown", "VolumeAttachmentLimitExceeded":
		return true
	default:
		return strings.HasPrefix(reason, "OutOf")
	}
}

// onNodes selects pods of a phase that have a node. Only the handlers read them.
func onNodes(name string, phase corev1.PodPhase) framework.Selection {
	return framework.Selection{
		Name:    Name + "/" + name,
		Example: &corev1.Pod{},
		Fields: fields.AndSelectors(
			fields.OneTermNotEqualSelector("spec.nodeName", ""), fields.OneTermEqualSelector("status.phase", string(phase)),
		),
	}
}

// startingPods selects the pods that start.
func (p *Plugin) startingPods() framework.Selection {
	s := onNodes("starting", corev1.PodPending)
	s.Transform, s.Handler = packStarting, p.slots.handler()
	return s
}

// refusedPods selects the pods that kubelets have refused.
func (p *Plugin) refusedPods() framework.Selection {
	s := onNodes("refused", corev1.PodFailed)
	s.Transform, s.Handler = packRefused, p.refused.handler()
	return s
}

// packStarting is a transform. It hides pods that need no slot.
func packStarting(o any) (any, error) {
	pod, ok := o.(*corev1.Pod)
	switch {
	case !ok:
		return o, nil
	case !isStarting(pod):
		return compact.Hide(pod), nil
	}
	node := unique.Make(pod.Spec.NodeName)
	return compact.Pack(pod, func(m metav1.ObjectMeta) client.Object {
		return &corev1.Pod{ObjectMeta: m, Spec: corev1.PodSpec{NodeName: node.Value()}}
	}), nil
}

// packRefused is a transform. It hides pods that no kubelet has refused. A kubelet sets
// status.startTime with its first status of a pod, which is the refusal; see updateStatusInternal in
// k8s.io/kubernetes/pkg/kubelet/status.
func packRefused(o any) (any, error) {
	pod, ok := o.(*corev1.Pod)
	switch {
	case !ok:
		return o, nil
	case !isRefusal(pod.Status.Reason) || framework.IsSystemPod(pod):
		return compact.Hide(pod), nil
	}
	node, reason, at := unique.Make(pod.Spec.NodeName), unique.Make(pod.Status.Reason), pod.CreationTimestamp
	if pod.Status.StartTime != nil {
		at = *pod.Status.StartTime
	}
	return compact.Pack(pod, func(m metav1.ObjectMeta) client.Object {
		return &corev1.Pod{ObjectMeta: m, Spec: corev1.PodSpec{NodeName: node.Value()}, Status: corev1.PodStatus{Reason: reason.Value(), StartTime: &at}}
	}), nil
}
