// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/configuration"
	"github.com/prebind/prebind/internal/work"
	"github.com/prebind/prebind/test/gen"
)

func TestPasses_Target(t *testing.T) {
	cases := map[string]struct {
		reason, name string
		target       corev1.ObjectReference
		want         bool
	}{
		"Node":      {reason: "the usual target", name: "web", target: corev1.ObjectReference{Kind: "Node", Name: "a"}, want: true},
		"EmptyKind": {reason: "the API server treats an empty kind as Node", name: "web", target: corev1.ObjectReference{Name: "a"}, want: true},
		"OtherKind": {reason: "the API server rejects other kinds", name: "web", target: corev1.ObjectReference{Kind: "Minion", Name: "a"}},
		"EmptyName": {reason: "the API server rejects an empty target", name: "web", target: corev1.ObjectReference{Kind: "Node"}},
		"OtherPod":  {reason: "the API server rejects a name that differs from that of the URL", name: "api", target: corev1.ObjectReference{Name: "a"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := Request{Pod: types.NamespacedName{Namespace: "default", Name: "web"}, Binding: &corev1.Binding{Target: tc.target}}
			r.Binding.Name = tc.name
			assert.Equal(t, !tc.want, passes(r), tc.reason)
		})
	}
}

// TestUnbindable: such a Binding passes to the API server, pinned so that it can bind no pod that Prebind has not checked.
func TestUnbindable(t *testing.T) {
	cases := map[string]struct {
		reason  string
		pod     *corev1.Pod
		binding []gen.BindingOption
		want    bool
		pins    Decision
	}{
		"SameUID":   {reason: "the Binding names this pod", pod: gen.Pod("web", gen.UID("1")), binding: []gen.BindingOption{gen.UID("1")}},
		"NoUID":     {reason: "a Binding without a UID is pinned later", pod: gen.Pod("web", gen.UID("1"))},
		"OtherUID":  {reason: "the Binding has the UID of a deleted pod", pod: gen.Pod("web", gen.UID("2")), binding: []gen.BindingOption{gen.UID("1")}, want: true},
		"Bound":     {reason: "another pod of the name can be created", pod: gen.Pod("web", gen.UID("1"), gen.BoundTo("node-b")), want: true, pins: Decision{UID: "1"}},
		"Deleted":   {reason: "another pod of the name can be created", pod: gen.Pod("web", gen.UID("1"), gen.Terminating()), want: true, pins: Decision{UID: "1"}},
		"Gated":     {reason: "the gate can be removed", pod: gen.Pod("web", gen.UID("1"), gen.Gate("g")), want: true, pins: Decision{UID: "1", ResourceVersion: "7"}},
		"GatedUID":  {reason: "the gate can be removed from the named pod", pod: gen.Pod("web", gen.UID("1"), gen.Gate("g")), binding: []gen.BindingOption{gen.UID("1")}, want: true, pins: Decision{ResourceVersion: "7"}},
		"GatedNext": {reason: "the client guesses the version without the gate", pod: gen.Pod("web", gen.UID("1"), gen.Gate("g")), binding: []gen.BindingOption{gen.AtVersion("8")}, want: true, pins: Decision{UID: "1", ResourceVersion: "7"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tc.pod.ResourceVersion = "7"
			binding := gen.Binding(tc.pod, "node-a", tc.binding...)
			assert.Equal(t, tc.want, unbindable(tc.pod, binding), tc.reason)
			if tc.want {
				tc.pins.PassThrough = true
				assert.Equal(t, tc.pins, rejectedBy(tc.pod, binding), tc.reason)
			}
		})
	}
}

// TestGuardMetadata_Many checks that the cost of a Binding with many invalid keys is limited.
func TestGuardMetadata_Many(t *testing.T) {
	pod := gen.Pod("web")
	b := gen.Binding(pod, "node-a")
	b.Annotations, b.Labels = map[string]string{}, map[string]string{}
	for i := range 8000 {
		b.Annotations[fmt.Sprint("!", i)], b.Labels[fmt.Sprint("!", i)] = "", ""
	}
	err := guardMetadata(pod, b)
	require.NotNil(t, err)
	assert.Len(t, err.Fields, maxProblems)
}

func TestGuardMetadata(t *testing.T) {
	const limit = 256 << 10
	cases := map[string]struct {
		reason  string
		pod     []gen.PodOption
		binding []gen.BindingOption
		added   map[string]string
		// want are the paths of the invalid fields.
		want []string
		// refused means that only the annotations that Prebind adds do not fit.
		refused bool
	}{
		"Nothing": {reason: "no metadata is valid"},
		"Valid": {
			reason:  "ordinary keys, with and without prefix, are valid",
			pod:     []gen.PodOption{gen.Annotation("a", "1"), gen.Annotation("example.com/b", "")},
			binding: []gen.BindingOption{gen.Annotation("example.com/c", "x\ny"), gen.Label("topology.kubernetes.io/zone", "z1")},
			added:   map[string]string{"topology.prebind.dev/zone": "z1"},
		},
		"BadKeyOfBinding": {
			reason:  "the API server stores the key and then rejects every update of the pod",
			binding: []gen.BindingOption{gen.Annotation("no good", "x")}, want: []string{"metadata.annotations"},
		},
		"BadLabelValue": {
			reason:  "the API server does not validate labels of a Binding",
			binding: []gen.BindingOption{gen.Label("rack", "no good")}, want: []string{"metadata.labels"},
		},
		"JustFits": {
			reason:  "256 KiB of keys and values are allowed",
			binding: []gen.BindingOption{gen.Annotation("key", strings.Repeat("x", limit-3))},
		},
		"TooLargeAlone": {
			reason:  "one byte more is too much",
			binding: []gen.BindingOption{gen.Annotation("key", strings.Repeat("x", limit-2))}, want: []string{"metadata.annotations"},
		},
		"TooLargeTogether": {
			reason:  "pod, Binding and mutators count together",
			pod:     []gen.PodOption{gen.Annotation("p", strings.Repeat("x", limit/2))},
			binding: []gen.BindingOption{gen.Annotation("b", strings.Repeat("x", limit/4))},
			added:   map[string]string{"m": strings.Repeat("x", limit/4)}, refused: true,
		},
		"NoRoom": {
			reason: "the annotation of a later attempt needs space, too",
			pod:    []gen.PodOption{gen.Annotation("p", strings.Repeat("x", limit-6))},
			added:  map[string]string{"a": "1234567"}, refused: true,
		},
		"ReplacedCountsOnce": {
			reason:  "a replaced value does not count",
			pod:     []gen.PodOption{gen.Annotation("k", strings.Repeat("x", limit/2))},
			binding: []gen.BindingOption{gen.Annotation("k", strings.Repeat("y", limit/2))},
			added:   map[string]string{"k": strings.Repeat("z", limit/2)},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pod := gen.Pod("web", tc.pod...)
			b := gen.Binding(pod, "node-a", tc.binding...)
			before, binding := pod.DeepCopy(), b.DeepCopy()

			err := guardMetadata(pod, b)
			if err == nil {
				err = guardSize(pod, b, tc.added)
			}

			assert.Equal(t, before, pod, "the pod is shared and must not change")
			assert.Equal(t, binding, b, "the Binding must not change")
			if tc.refused {
				require.NotNil(t, err, tc.reason)
				assert.Equal(t, framework.KindRefuse, err.Kind, "on another node, Prebind can add less")
				return
			}
			if len(tc.want) == 0 {
				assert.Nil(t, err, tc.reason)
				return
			}
			require.NotNil(t, err, tc.reason)
			assert.Equal(t, framework.KindInvalid, err.Kind, tc.reason)
			assert.NotEmpty(t, err.Advice)
			var paths []string
			for _, f := range err.Fields {
				paths = append(paths, f.Path)
				assert.NotEmpty(t, f.Message)
			}
			assert.Equal(t, tc.want, paths, tc.reason)
			assert.NotContains(t, err.Error(), "\n", "a message is one line")
			assert.Less(t, len(err.Error()), 4096, "a message does not repeat a large annotation")
		})
	}
}

func TestSettings_In(t *testing.T) {
	s := Settings{
		Mode: ModeEnforce, Hold: 25 * time.Second, PreBindTimeout: 10 * time.Minute, MaxPreBindTimeout: 30 * time.Minute,
		Namespaces: []configuration.NamespaceRule{
			{Names: []string{"shop"}, Mode: ModeOff},
			{Names: []string{"shop", "batch-*"}, Mode: ModeAudit, PreBindTimeout: metav1.Duration{Duration: time.Hour}},
			{Names: []string{"workers"}, RejectAfter: metav1.Duration{Duration: 2 * time.Second}},
			{Names: []string{"quick"}, MaxPreBindTimeout: metav1.Duration{Duration: time.Minute}},
			{Names: []string{"*-test"}, Mode: ModeEnforce, PreBindTimeout: metav1.Duration{Duration: time.Minute}, MaxPreBindTimeout: metav1.Duration{Duration: 2 * time.Minute}},
		},
	}
	cases := map[string]struct {
		reason, namespace string
		want              Settings
	}{
		"First":    {reason: "only the first rule applies", namespace: "shop", want: Settings{Mode: ModeOff, Hold: 25 * time.Second, PreBindTimeout: 10 * time.Minute, MaxPreBindTimeout: 30 * time.Minute}},
		"Pattern":  {reason: "a timeout above the limit raises the limit", namespace: "batch-7", want: Settings{Mode: ModeAudit, Hold: 25 * time.Second, PreBindTimeout: time.Hour, MaxPreBindTimeout: time.Hour}},
		"NoMatch":  {reason: "a pattern matches the whole name", namespace: "my-batch-7", want: Settings{Mode: ModeEnforce, Hold: 25 * time.Second, PreBindTimeout: 10 * time.Minute, MaxPreBindTimeout: 30 * time.Minute}},
		"Limit":    {reason: "a lower limit lowers the timeout", namespace: "quick", want: Settings{Mode: ModeEnforce, Hold: 25 * time.Second, PreBindTimeout: time.Minute, MaxPreBindTimeout: time.Minute}},
		"Reject":   {reason: "a call is held for the shorter time", namespace: "workers", want: Settings{Mode: ModeEnforce, Hold: 2 * time.Second, RejectWaits: true, PreBindTimeout: 10 * time.Minute, MaxPreBindTimeout: 30 * time.Minute}},
		"AllThree": {reason: "a rule can have all fields", namespace: "a-test", want: Settings{Mode: ModeEnforce, Hold: 25 * time.Second, PreBindTimeout: time.Minute, MaxPreBindTimeout: 2 * time.Minute}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tc.want.Namespaces = s.Namespaces
			assert.Equal(t, tc.want, s.in(tc.namespace), tc.reason)
		})
	}
}

// Pods that are deleted while they wait are not asked for again.
func TestWaits_ForgetsExpired(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	w := newWaits(clock)
	for _, uid := range []types.UID{"a", "b"} {
		w.change(work.Key{Pod: uid}, clock.Now(), func(*waited) {})
		clock.Step(work.AbandonAfter - time.Second)
	}
	w.all()
	var kept []any
	w.cache.RemoveAll(func(key any) bool {
		kept = append(kept, key)
		return false
	})
	assert.Equal(t, []any{work.Key{Pod: "b"}}, kept)
}
