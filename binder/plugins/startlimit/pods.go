// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package startlimit

import (
	"slices"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/compact"
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

// refusals are values of status.reason of a pod that the kubelet refused, if the cause can be the node. They are
// those of admissionRejectionReasons in k8s.io/kubernetes/pkg/kubelet, and the names of predicates in
// pkg/kubelet/lifecycle. Reasons that only the pod causes, such as SysctlForbidden, are not included,
// because every node would refuse the pod. Evicted is not included, because it is also the reason of pods that ran.
var refusals = sets.New("UnexpectedAdmissionError", "UnknownReason", "UnexpectedPredicateFailureType", "InvalidNodeInfo", "NodeAffinity",
	"NodePorts", "TaintToleration", "TopologyAffinityError", "NodeShutdown", "VolumeAttachmentLimitExceeded")

// isRefused returns whether the kubelet refused the pod, and the cause can be the node.
func isRefused(pod *corev1.Pod) bool {
	return (refusals.Has(pod.Status.Reason) || strings.HasPrefix(pod.Status.Reason, "OutOf")) && !podstate.IsSystem(pod)
}

// startingPods selects the pods that start.
func (p *Plugin) startingPods() framework.Selection {
	return onNodes("starting", corev1.PodPending, isStarting, p.slots.handler())
}

// refusedPods selects the pods that kubelets have refused.
func (p *Plugin) refusedPods() framework.Selection {
	return onNodes("refused", corev1.PodFailed, isRefused, p.refused.handler())
}

// onNodes selects pods of a phase that have a node. The cache hides the others than those that count. Only the handler
// reads them.
func onNodes(name string, phase corev1.PodPhase, counts func(*corev1.Pod) bool, handler toolscache.ResourceEventHandler) framework.Selection {
	return framework.Selection{
		Name:    Name + "/" + name,
		Example: &corev1.Pod{},
		Fields: fields.AndSelectors(
			fields.OneTermNotEqualSelector("spec.nodeName", ""), fields.OneTermEqualSelector("status.phase", string(phase)),
		),
		Transform: compact.Transform(func(pod *corev1.Pod) *compact.Object {
			if !counts(pod) {
				return compact.Hide(pod)
			}
			return pack(pod)
		}),
		Handler: handler,
	}
}

// pack keeps the node, and the reason and the time of a refusal. A kubelet sets status.startTime with its first status
// of a pod, which is the refusal; see updateStatusInternal in k8s.io/kubernetes/pkg/kubelet/status.
func pack(pod *corev1.Pod) *compact.Object {
	node, reason, at := unique.Make(pod.Spec.NodeName), unique.Make(pod.Status.Reason), pod.Status.StartTime.DeepCopy()
	return compact.Pack(pod, func(m metav1.ObjectMeta) client.Object {
		return &corev1.Pod{ObjectMeta: m, Spec: corev1.PodSpec{NodeName: node.Value()}, Status: corev1.PodStatus{Reason: reason.Value(), StartTime: at}}
	})
}
