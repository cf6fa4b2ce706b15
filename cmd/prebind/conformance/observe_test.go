// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

// event returns an event about the node, which was repeated after the time.
func event(reason, node string, at time.Time, again time.Duration) eventsv1.Event {
	e := eventsv1.Event{Reason: reason, EventTime: metav1.NewMicroTime(at), Related: &corev1.ObjectReference{Kind: "Node", Name: node}}
	if again > 0 {
		e.Series = &eventsv1.EventSeries{Count: 2, LastObservedTime: metav1.NewMicroTime(at.Add(again))}
	}
	return e
}

func TestPace(t *testing.T) {
	now := time.Now()
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	tests := map[string]struct {
		reason string
		events []eventsv1.Event
		// calls are durations of calls at the same time.
		calls        []time.Duration
		loops, waits bool
	}{
		"SlowCluster": {
			reason: "a loop cannot be faster than its calls", calls: []time.Duration{ms(300), ms(350)}, loops: true,
			events: []eventsv1.Event{event("BindRefused", "a", now, ms(350))},
		},
		"SlowBackoff": {
			reason: "backoff comes in addition to the call", calls: []time.Duration{ms(300), ms(350)}, waits: true,
			events: []eventsv1.Event{event("BindRefused", "a", now, ms(1300))},
		},
		"Uneven": {
			reason: "one of the slow calls, or backoff", calls: []time.Duration{ms(2300), ms(300)},
			events: []eventsv1.Event{event("BindRefused", "a", now, ms(1300))},
		},
		"Once":    {reason: "one refusal has no pace", calls: []time.Duration{ms(10)}, events: []eventsv1.Event{event("BindRefused", "a", now, 0)}},
		"Backoff": {reason: "the scheduler waits a second", calls: []time.Duration{ms(10)}, events: []eventsv1.Event{event("BindRefused", "a", now, time.Second), event("BindRefused", "b", now.Add(3*time.Second), 0)}, waits: true},
		"SameNode": {
			reason: "the second refusal follows immediately", calls: []time.Duration{ms(10)}, loops: true,
			events: []eventsv1.Event{event("BindRefused", "a", now, ms(20))},
		},
		"OtherNode": {
			reason: "another node is also a repeated Binding", calls: []time.Duration{ms(10)}, loops: true,
			events: []eventsv1.Event{event("BindRefused", "b", now.Add(ms(30)), 0), event("BindRefused", "a", now, 0)},
		},
		"OtherEvent": {
			reason: "only refusals count", calls: []time.Duration{ms(10)},
			events: []eventsv1.Event{event("BindRefused", "a", now, 0), event("WaitingForPreBind", "a", now, 0), event("FailedScheduling", "", now, 0)},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var p pace
			for _, took := range tc.calls {
				p.called(took)
			}
			p.add(sightings(tc.events, "BindRefused"))
			assert.Equal(t, tc.loops, p.loops(), tc.reason)
			assert.Equal(t, tc.waits, p.waits(), tc.reason)
		})
	}
}

func TestPace_AddsPods(t *testing.T) {
	now := time.Now()
	var p pace
	p.called(time.Second)
	p.called(10 * time.Millisecond)
	p.add([]sighting{{at: now}, {at: now.Add(time.Second)}})
	assert.False(t, p.loops(), "a second may be a slow call")
	assert.Equal(t, "1s between two Bindings prove neither backoff nor a loop, because calls took 10ms to 1s; repeat the run when the cluster has less load", p.String())
	p.add([]sighting{{at: now}, {at: now.Add(20 * time.Millisecond)}, {at: now.Add(2 * time.Second)}})
	assert.True(t, p.loops(), "the second pod shows the loop")
	assert.Contains(t, p.violation().advice, "backoff")
	assert.Contains(t, p.violation().what, "20ms after a refusal")
}

func TestIsUsable(t *testing.T) {
	ready := func(options ...gen.NodeOption) *corev1.Node {
		n := gen.Node("node-1", options...)
		n.Labels = map[string]string{corev1.LabelHostname: "node-1"}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		return n
	}
	change := func(f func(n *corev1.Node)) *corev1.Node {
		n := ready()
		f(n)
		return n
	}
	tests := map[string]struct {
		reason string
		node   *corev1.Node
		want   bool
	}{
		"Ready":    {reason: "pods can be bound to it", node: ready(), want: true},
		"NotReady": {reason: "the scheduler avoids it", node: change(func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown })},
		"Cordoned": {reason: "the scheduler avoids it", node: change(func(n *corev1.Node) { n.Spec.Unschedulable = true })},
		"Taint":    {reason: "the pods have no tolerations", node: change(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}} })},
		"SoftTaint": {reason: "the taint does not exclude pods", node: change(func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectPreferNoSchedule}}
		}), want: true},
		"NoHostname":  {reason: "pods cannot be pinned to it", node: change(func(n *corev1.Node) { n.Labels = nil })},
		"IsDeleted":   {reason: "it will be gone", node: change(func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{Time: time.Now()} })},
		"NoCondition": {reason: "its state is unknown", node: change(func(n *corev1.Node) { n.Status.Conditions = nil })},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, isUsable(tc.node), tc.reason) })
	}
}

func TestCountCalls(t *testing.T) {
	const metrics = `# HELP apiserver_admission_webhook_admission_duration_seconds x
apiserver_admission_webhook_admission_duration_seconds_count{name="pods-binding.prebind.dev",operation="CREATE",rejected="false",type="admit"} 40
apiserver_admission_webhook_admission_duration_seconds_count{name="pods-binding.prebind.dev",operation="CREATE",rejected="true",type="admit"} 1e+01
apiserver_admission_webhook_admission_duration_seconds_count{name="other.example.com",operation="CREATE",rejected="true",type="admit"} 7
apiserver_admission_webhook_admission_duration_seconds_sum{name="pods-binding.prebind.dev",operation="CREATE",rejected="true",type="admit"} 9
`
	assert.Equal(t, 50, countCalls(metrics))
	assert.Zero(t, countCalls(""))
}

func TestOptions_Validate(t *testing.T) {
	tests := map[string]struct {
		change func(o *Options)
		err    string
	}{
		"Defaults":    {change: func(*Options) {}},
		"NoScheduler": {change: func(o *Options) { o.Scheduler = "" }, err: "--scheduler-name: required"},
		"NoWait":      {change: func(o *Options) { o.Wait = 0 }, err: "--wait: must be positive, got 0s"},
		"LongWait":    {change: func(o *Options) { o.Wait = time.Hour }, err: "--wait: must be at most 4m0s, got 1h0m0s"},
		"NoTimeout":   {change: func(o *Options) { o.Timeout = -time.Second }, err: "--timeout: must be positive, got -1s"},
		"Burst":       {change: func(o *Options) { o.Burst = 0 }, err: "--burst: must be from 1 to 1000, got 0"},
		"Prefix":      {change: func(o *Options) { o.NamespacePrefix = "A_" }, err: "--namespace-prefix: "},
		"AllNodes":    {change: func(o *Options) { o.Nodes = []string{"a", "b"} }},
		"OneNode":     {change: func(o *Options) { o.Nodes = []string{"a"} }, err: "--nodes: must name at least two nodes, got a"},
		"SameNode":    {change: func(o *Options) { o.Nodes = []string{"a", "a"} }, err: "--nodes: must name at least two nodes, got a,a"},
		"Some":        {change: func(o *Options) { o.Run = regexp.MustCompile("^(wait|nothing)$") }},
		"Only":        {change: func(o *Options) { o.Run = regexp.MustCompile("^bind$") }},
		"NoCheck":     {change: func(o *Options) { o.Run = regexp.MustCompile("burts") }, err: `--run: no check matches "burts"; the checks are bind, annotations, `},
		"Annotation":  {change: func(o *Options) { o.BindingAnnotation = "a b" }, err: "--binding-annotation: "},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := Default()
			o.Scheduler = "my-scheduler"
			tc.change(&o)
			err := o.Validate()
			if tc.err == "" {
				require.NoError(t, err)
				return
			}
			assert.ErrorContains(t, err, tc.err)
		})
	}
}

// Every check refers to a section of the contract, and has a unique name.
func TestChecks(t *testing.T) {
	contract := readGuide(t)
	names := map[string]bool{}
	for i, c := range checks() {
		assert.False(t, names[c.name], c.name)
		names[c.name] = true
		assert.Contains(t, contract, c.section, c.name)
		assert.Contains(t, Describe(), "  "+c.name+" ", "the help shows each check")
		assert.Contains(t, Describe(), c.rule+"\n")
		assert.NotEmpty(t, c.rule)
		assert.Equal(t, i == 0, c.name == checkBind, "bind is first, because it decides whether the others are made")
	}
}

// TestAdvice checks that the advice for timeouts refers to a section of the contract.
func TestAdvice(t *testing.T) {
	contract := readGuide(t)
	for _, advice := range []string{adviceRepeat, adviceStay} {
		_, anchor, ok := strings.Cut(advice, guide+"#")
		require.True(t, ok, advice)
		assert.Contains(t, contract, strings.TrimRight(anchor, ")."))
		assert.Contains(t, advice, "rest.Config.Timeout")
	}
}

func TestStayed(t *testing.T) {
	require.NoError(t, stayed(nil))
	require.NoError(t, stayed([]string{"node-1"}))
	var v *violation
	require.ErrorAs(t, stayed([]string{"node-11", "node-2", "node-3"}), &v)
	assert.Equal(t, "the pod waited on node-11, and the scheduler posted Bindings to other nodes in the meantime: node-2, node-3", v.what)
}

// TestRecorded checks that a record of Prebind with the pod is found, in any ConfigMap.
func TestRecorded(t *testing.T) {
	record := func(name string, data map[string]string) *corev1.ConfigMap {
		return &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "where-prebind-runs", Name: name, Labels: map[string]string{"app.kubernetes.io/managed-by": "prebind"}},
			Data:       data,
		}
	}
	tests := map[string]struct {
		reason string
		data   map[string]string
		want   bool
	}{
		"Grant":   {reason: "a device record has the UID as a key", data: map[string]string{"node": "a", "uid-1": "{}"}, want: true},
		"Lock":    {reason: "the lock of a node names the UID", data: map[string]string{"node-lock": `{"pod":"a/b","uid":"uid-1"}`}, want: true},
		"Another": {reason: "the record of another pod", data: map[string]string{"node": "a", "uid-2": "{}"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := sessionOn(fakeapi.NewClientset(record("other", nil), record("devices", tc.data)), &bytes.Buffer{})
			got, err := s.recorded(t.Context(), "uid-1")
			require.NoError(t, err)
			assert.Equal(t, tc.want, got, tc.reason)
		})
	}
}
