// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package startlimit

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/podstate"
)

// stuck are the reasons of a container that waits for the kubelet's next try. They are those of
// ErrImagePullBackOff and its neighbors in k8s.io/kubernetes/pkg/kubelet/images and pkg/kubelet/kuberuntime.
var stuck = sets.New("ImagePullBackOff", "CrashLoopBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError")

// isStarting returns whether a bound pod counts until its start times out. A pod whose container
// waits for the kubelet's next try, for example because its image does not exist, uses nothing of
// the node. Only the kubelet writes this status.
func isStarting(pod *corev1.Pod) bool {
	if pod.Status.Phase != corev1.PodPending || pod.DeletionTimestamp != nil || podstate.IsSystem(pod) {
		return false
	}
	isStuck := func(s corev1.ContainerStatus) bool {
		return s.State.Waiting != nil && stuck.Has(s.State.Waiting.Reason)
	}
	return !slices.ContainsFunc(pod.Status.InitContainerStatuses, isStuck) && !slices.ContainsFunc(pod.Status.ContainerStatuses, isStuck)
}

// refusals are values of status.reason of a pod that the kubelet rejected, if the cause can be the node. They are
// those of admissionRejectionReasons in k8s.io/kubernetes/pkg/kubelet, and the names of predicates in
// pkg/kubelet/lifecycle. Reasons that only the pod causes, such as SysctlForbidden, are not included,
// because every node would reject the pod. Evicted is not included, because it is also the reason of pods that ran.
var refusals = sets.New("UnexpectedAdmissionError", "UnknownReason", "UnexpectedPredicateFailureType", "InvalidNodeInfo", "NodeAffinity",
	"NodePorts", "TaintToleration", "TopologyAffinityError", "NodeShutdown", "VolumeAttachmentLimitExceeded", "AppArmor",
	"SupplementalGroupsPolicyNotSupported", "PodFeatureUnsupported", "PodLevelResourcesNotSupported")

// isRefused returns whether the kubelet rejected the pod, and the cause can be the node.
func isRefused(pod *corev1.Pod) bool {
	return (refusals.Has(pod.Status.Reason) || strings.HasPrefix(pod.Status.Reason, "OutOf")) && !podstate.IsSystem(pod)
}

// startingPods selects the pods that start.
func (p *Plugin) startingPods() framework.Selection {
	return onNodes("starting", corev1.PodPending, isStarting, p.slots.handler())
}

// refusedPods selects the pods that kubelets have rejected.
func (p *Plugin) refusedPods() framework.Selection {
	return onNodes("refused", corev1.PodFailed, isRefused, p.refused.handler())
}

// onNodes selects pods of a phase that have a node. In the cache, only those that count have one. Only the handler reads them.
func onNodes(name string, phase corev1.PodPhase, counts func(*corev1.Pod) bool, handler toolscache.ResourceEventHandler) framework.Selection {
	return framework.Selection{
		Name:    Name + "/" + name,
		Example: &corev1.Pod{},
		Fields: fields.AndSelectors(
			fields.OneTermNotEqualSelector("spec.nodeName", ""), fields.OneTermEqualSelector("status.phase", string(phase)),
		),
		Transform: framework.Transform(func(pod *corev1.Pod) *corev1.Pod { return trim(pod, counts(pod)) }),
		Handler:   handler,
	}
}

// trim keeps the node of a pod that counts, and the reason and the time of a rejection. A kubelet sets status.startTime with its first
// status of a pod, which is the rejection; see updateStatusInternal in k8s.io/kubernetes/pkg/kubelet/status.
func trim(pod *corev1.Pod, counts bool) *corev1.Pod {
	trimmed := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion}}
	if counts {
		trimmed.CreationTimestamp, trimmed.Spec.NodeName = pod.CreationTimestamp, pod.Spec.NodeName
		trimmed.Status = corev1.PodStatus{Phase: pod.Status.Phase, Reason: pod.Status.Reason, StartTime: pod.Status.StartTime}
	}
	return trimmed
}

// podOf returns the pod of an event, or nil if it does not count.
func podOf(o any) *corev1.Pod {
	if pod, ok := o.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
		return pod
	}
	return nil
}
