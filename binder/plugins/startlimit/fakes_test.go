// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package startlimit

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/test/gen"
)

const nodeA = "node-a"

// world is an API server with the plugin of one replica. The informers of the replica are synchronous.
type world struct {
	*frameworktest.Cluster
	plugin *Plugin
	all    []framework.Selection
	// selected contains the pods that the informers hold, by selection and key.
	selected map[string]map[client.ObjectKey]any
}

func newWorld(t testing.TB, args *Arguments, objects ...client.Object) *world {
	t.Helper()
	w := &world{plugin: newPlugin(), selected: map[string]map[client.ObjectKey]any{}}
	w.all = []framework.Selection{w.plugin.startingPods(), w.plugin.refusedPods()}
	for _, s := range w.all {
		w.selected[s.Name] = map[client.ObjectKey]any{}
	}
	w.Cluster = frameworktest.New(t, framework.Registration{Name: Name, New: func(h framework.Handle, _ framework.Arguments) (framework.Plugin, error) {
		return w.plugin.configure(h, args)
	}}, nil, append(objects, gen.Node(nodeA))...)
	for _, o := range objects {
		w.deliver(o, false, true)
	}
	w.OnChange(func(o client.Object, deleted bool) { w.deliver(o, deleted, false) })
	return w
}

// deliver is the work of an informer.
func (w *world) deliver(o client.Object, deleted, initial bool) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	key := client.ObjectKeyFromObject(pod)
	for _, s := range w.all {
		isIn := !deleted && s.Fields.Matches(fields.Set{"spec.nodeName": pod.Spec.NodeName, "status.phase": string(pod.Status.Phase)})
		trimmed, _ := s.Transform(pod.DeepCopy())
		before, was := w.selected[s.Name][key]
		switch {
		case isIn && !was:
			s.Handler.OnAdd(trimmed, initial)
		case isIn:
			s.Handler.OnUpdate(before, trimmed)
		case was:
			s.Handler.OnDelete(before)
		}
		if delete(w.selected[s.Name], key); isIn {
			w.selected[s.Name][key] = trimmed
		}
	}
}

// small are arguments with a low limit.
func small(limit int) *Arguments {
	a := Defaults()
	a.Limit, a.Wait.Duration = limit, 30*time.Second
	return a
}

// start posts a Binding of a pod, and returns when it waits or has ended.
func (w *world) start(ctx context.Context, name string, changes ...gen.PodOption) *frameworktest.Running {
	pod := thePod(name, changes...)
	w.Put(pod)
	return frameworktest.Start(func() error {
		if o := w.Post(ctx, pod, nodeA); o.Err != nil {
			return o.Err
		}
		return nil
	})
}

func thePod(name string, options ...gen.PodOption) *corev1.Pod {
	return gen.Pod(name, append([]gen.PodOption{gen.UID(types.UID(name))}, options...)...)
}

// bound is a pod that is bound now.
func bound(name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	return boundSince(name, clock.RealClock{}.Now(), changes...)
}

func boundSince(name string, since time.Time, changes ...func(*corev1.Pod)) *corev1.Pod {
	pod := thePod(name, gen.BoundTo(nodeA))
	pod.Status = corev1.PodStatus{
		Phase:      corev1.PodPending,
		Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(since)}},
	}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

func inPhase(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Status.Phase = phase }
}

func inNamespace(namespace string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Namespace = namespace }
}

// refusedFor is a pod that the kubelet rejected at the time. The kubelet removes the conditions; see rejectPod in k8s.io/kubernetes/pkg/kubelet.
func refusedFor(reason string, at time.Time) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: reason, StartTime: new(metav1.NewTime(at))}
	}
}

// createdNow is a pod that is created now, by the clock of the API server.
func createdNow(pod *corev1.Pod) { pod.CreationTimestamp = metav1.Now() }

func waitsFor(reason string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}}
	}
}
