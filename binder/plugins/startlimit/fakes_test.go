// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package startlimit

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/compact"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/plugintest"
)

const nodeA = "node-a"

// world is an API server with the plugin of one replica. The informers of the replica are synchronous.
type world struct {
	*Plugin
	server   *fakeapi.Server
	recorder *events.FakeRecorder
	all      []framework.Selection

	mu sync.Mutex
	// behind stops the events of the informers.
	behind bool
	// selected contains the pods that the informers hold, by selection and key.
	selected map[string]map[client.ObjectKey]any
}

func newWorld(t testing.TB, args *Arguments, objects ...client.Object) *world {
	t.Helper()
	w := &world{
		server: fakeapi.New(objects...), recorder: events.NewFakeRecorder(100),
		selected: map[string]map[client.ObjectKey]any{},
	}
	r, hub := Registration(), framework.NewHub()
	w.all = r.Selections(args)
	for _, s := range w.all {
		w.selected[s.Name] = map[client.ObjectKey]any{}
	}
	for _, o := range objects {
		w.deliver(hub, o, false, true)
	}
	w.server.OnChange(func(o client.Object, deleted bool) { w.deliver(hub, o, deleted, false) })
	p, err := r.New(framework.Handle{
		Cached: cached{w}, Live: w.server.Connect(), Changes: hub, Clock: clock.RealClock{}, Events: w.recorder,
	}, args)
	require.NoError(t, err)
	w.Plugin, _ = p.(*Plugin)
	return w
}

// deliver is the work of an informer: its store has changed when it wakes binds.
func (w *world) deliver(hub *framework.Hub, o client.Object, deleted, initial bool) {
	pod, ok := o.(*corev1.Pod)
	w.mu.Lock()
	behind := w.behind
	w.mu.Unlock()
	if !ok || behind {
		return
	}
	key := client.ObjectKeyFromObject(pod)
	for _, s := range w.all {
		isIn := !deleted && pod.Spec.NodeName != "" && s.Fields.Matches(podFields(pod))
		packed, _ := s.Transform(pod.DeepCopy())
		w.mu.Lock()
		_, was := w.selected[s.Name][key]
		if isIn {
			w.selected[s.Name][key] = packed
		} else {
			delete(w.selected[s.Name], key)
		}
		w.mu.Unlock()
		switch {
		case isIn && !was:
			s.Handler.OnAdd(packed, initial)
		case isIn:
			s.Handler.OnUpdate(packed, packed)
		}
		if isIn || was {
			hub.Changed(s.Changed(pod.Spec.NodeName))
		}
	}
}

type podFieldSet map[string]string

func podFields(pod *corev1.Pod) podFieldSet {
	return podFieldSet{"spec.nodeName": pod.Spec.NodeName, "status.phase": string(pod.Status.Phase)}
}

// Has and Get implement fields.Fields.
func (s podFieldSet) Has(field string) bool { _, ok := s[field]; return ok }

func (s podFieldSet) Get(field string) string { return s[field] }

// cached reads what the informers hold.
type cached struct{ *world }

// Get implements client.Reader.
func (c cached) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	return c.server.Cache().Get(ctx, key, into, opts...)
}

// List implements client.Reader.
func (c cached) List(_ context.Context, into client.ObjectList, opts ...client.ListOption) error {
	by, _ := opts[0].(framework.Selected)
	list, _ := into.(*corev1.PodList)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, packed := range c.selected[by.Name] {
		if pod, ok := compact.Unpack(packed).(*corev1.Pod); ok && by.Selection.Value(pod) == by.Value {
			list.Items = append(list.Items, *pod)
		}
	}
	return nil
}

// small are arguments with a low limit.
func small(limit int) *Arguments {
	a := Defaults()
	a.Limit, a.Wait = limit, 30*time.Second
	return a
}

// bind is the bind of a pod without a node.
func bind(name string, options ...gen.PodOption) *framework.BindContext {
	bc := plugintest.Bind(thePod(name, options...), gen.Node(nodeA))
	bc.Attempt = "attempt-" + name
	return bc
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

// refusedFor is a pod that the kubelet refused at the time.
func refusedFor(reason string, at time.Time) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status.Phase, pod.Status.Reason, pod.Status.StartTime = corev1.PodFailed, reason, new(metav1.NewTime(at))
	}
}

func waitsFor(reason string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}}
	}
}
