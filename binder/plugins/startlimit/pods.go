// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package startlimit

import (
	"strings"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/compact"
	"github.com/prebind/prebind/binder/framework"
)

// isExempt returns whether the pod needs no slot: a pod of a DaemonSet, a static pod, and a pod
// that the node or the cluster cannot work without.
func isExempt(pod *corev1.Pod) bool {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return true
	}
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil && (owner.Kind == "DaemonSet" || owner.Kind == "Node") {
		return true
	}
	return pod.Spec.PriorityClassName == "system-node-critical" || pod.Spec.PriorityClassName == "system-cluster-critical"
}

// isStarting returns whether a bound pod counts until its start times out. A pod whose container
// waits for the kubelet's next try, for example because its image does not exist, uses nothing of
// the node. Only the kubelet writes this status.
func isStarting(pod *corev1.Pod) bool {
	if pod.Status.Phase != corev1.PodPending || pod.DeletionTimestamp != nil || isExempt(pod) {
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

// boundAt returns when the pod was bound. The API server sets the condition with the bind.
func boundAt(pod *corev1.Pod) time.Time {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return pod.CreationTimestamp.Time
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

func nodeOf(o client.Object) string {
	if pod, ok := o.(*corev1.Pod); ok {
		return pod.Spec.NodeName
	}
	return ""
}

// onNodes selects pods of a phase that have a node.
func onNodes(name string, phase corev1.PodPhase) framework.Selection {
	return framework.Selection{
		Name:    Name + "/" + name,
		Example: &corev1.Pod{},
		Fields: fields.AndSelectors(
			fields.OneTermNotEqualSelector("spec.nodeName", ""), fields.OneTermEqualSelector("status.phase", string(phase)),
		),
		Field: "spec.nodeName",
		Value: nodeOf,
	}
}

// startingPods selects the pods that start.
func startingPods(held *slots) framework.Selection {
	s := onNodes("starting", corev1.PodPending)
	s.Transform, s.Handler = packStarting, held.handler()
	return s
}

// refusedPods selects the pods that kubelets have refused.
func refusedPods(to *breakers) framework.Selection {
	s := onNodes("refused", corev1.PodFailed)
	s.Transform = packRefused
	s.Handler = to.handler()
	return s
}

// pod is a pod of a selection. Pods of a node share its name.
type pod struct {
	namespace, node unique.Handle[string]
	name, version   string
	uid             types.UID
	phase           corev1.PodPhase
	// reason is that of a refusal, or empty. at is the time of the bind or of the refusal.
	reason unique.Handle[string]
	at     int64
}

var _ compact.Object = (*pod)(nil)

func pack(p *corev1.Pod, at time.Time) *pod {
	return &pod{
		namespace: unique.Make(p.Namespace), node: unique.Make(p.Spec.NodeName), name: p.Name, version: p.ResourceVersion, uid: p.UID,
		phase: p.Status.Phase, reason: unique.Make(p.Status.Reason), at: at.Unix(),
	}
}

// packStarting is a transform. Readers do not find pods that need no slot.
func packStarting(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	switch {
	case !ok:
		return o, nil
	case !isStarting(p):
		return compact.Hide(p), nil
	default:
		return pack(p, boundAt(p)), nil
	}
}

// packRefused is a transform. Readers find only pods that a kubelet has refused. A kubelet sets
// status.startTime with its first status of a pod, which is the refusal; see updateStatusInternal in
// k8s.io/kubernetes/pkg/kubelet/status.
func packRefused(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	switch {
	case !ok:
		return o, nil
	case !isRefusal(p.Status.Reason) || isExempt(p):
		return compact.Hide(p), nil
	case p.Status.StartTime != nil:
		return pack(p, p.Status.StartTime.Time), nil
	default:
		return pack(p, p.CreationTimestamp.Time), nil
	}
}

// GetObjectMeta implements compact.Object.
func (p *pod) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: p.namespace.Value(), Name: p.name, UID: p.uid, ResourceVersion: p.version}
}

// Unpack implements compact.Object.
func (p *pod) Unpack() client.Object {
	at := metav1.Unix(p.at, 0)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace.Value(), Name: p.name, UID: p.uid, ResourceVersion: p.version},
		Spec:       corev1.PodSpec{NodeName: p.node.Value()},
		Status: corev1.PodStatus{
			Phase: p.phase, Reason: p.reason.Value(), StartTime: &at,
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: at}},
		},
	}
}
