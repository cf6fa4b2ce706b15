// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/internal/policy"
)

// A policy reads a limited amount for each bind, because tenants create the objects.
func TestEvaluate_ReadLimits(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, message string
		change          func(s *policy.Subject, o *objects)
	}{
		"Objects": {reason: "a list may be long", message: "spec.resources[agents]: more than 1000 objects", change: func(_ *policy.Subject, o *objects) {
			o.resources["agents"] = large(1001)
		}},
		"Object": {reason: "an object may be large", message: "claims: demo/data-0 is larger than 32 KiB", change: func(_ *policy.Subject, o *objects) {
			o.resources["claims"][0].SetAnnotations(map[string]string{"a": strings.Repeat("x", policy.MaxObject)})
		}},
		"Size": {reason: "all objects together may be large", message: "spec.resources[agents]: the policy reads more than 4 MiB of objects", change: func(_ *policy.Subject, o *objects) {
			o.resources["agents"] = large(200)
			for _, agent := range o.resources["agents"] {
				agent.SetAnnotations(map[string]string{"a": strings.Repeat("x", 30<<10)})
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s, o := subject(), world()
			tc.change(s, o)
			r := evaluate(t, declared+validation("size(claims) > 0 && size(resources.agents) > 0"), s, o)
			assert.Equal(t, policy.Failed, r.Verdict, tc.reason)
			assert.Contains(t, r.Message, tc.message, tc.reason)
		})
	}
}

func TestEvaluate_NoAllocationWithoutMatch(t *testing.T) {
	s, o, ctx := subject(), world(), t.Context()
	s.Pod.Labels = map[string]string{"app": "web"}
	for _, match := range []string{
		"{podSelector: {matchLabels: {app: db}}}", "{nodeSelector: {matchLabels: {a: b}}}", "{schedulerNames: [volcano]}",
	} {
		c := compile(t, "matchConstraints: "+match+"\n"+validation("false"))
		assert.Zero(t, testing.AllocsPerRun(100, func() {
			if r, err := c.Evaluate(ctx, s, o); err != nil || r.Verdict != policy.NotMatched {
				t.Error(r, err)
			}
		}), match)
	}
}

// All policies use one copy of the pod: 200 policies, of which each copied a large pod, needed 130 ms.
func TestEvaluate_CopiesPodOnce(t *testing.T) {
	c := compile(t, validation("pod.metadata.name == object.metadata.name"))
	s := subject()
	for range 100 {
		s.Pod.Spec.Containers = append(s.Pod.Spec.Containers, corev1.Container{Env: make([]corev1.EnvVar, 1)})
		s.Binding.OwnerReferences = append(s.Binding.OwnerReferences, metav1.OwnerReference{Controller: new(true)})
	}
	allocations := testing.AllocsPerRun(10, func() {
		_, err := c.Evaluate(t.Context(), s, world())
		assert.NoError(t, err)
	})
	assert.Less(t, allocations, 100.0)
}

// large is a list that takes long to iterate over several times.
func large(n int) []client.Object {
	list := make([]client.Object, n)
	for i := range list {
		list[i] = &corev1.Pod{ObjectMeta: meta(fmt.Sprint("pod-", i))}
	}
	return list
}

const nested = "resources.agents.all(a, resources.agents.all(b, resources.agents.all(c, a.metadata.name + b.metadata.name != c.metadata.name)))"

func TestEvaluate_CostLimit(t *testing.T) {
	o := world()
	o.resources["agents"] = large(1000)
	r := evaluate(t, declared+validation(nested), subject(), o)
	assert.Equal(t, policy.Failed, r.Verdict)
	assert.Contains(t, r.Message, "cost limit exceeded")
	assert.Greater(t, r.Cost, uint64(100_000), "the cost is counted")
	assert.Less(t, r.Cost, uint64(200_000))
}

// Each expression is below its limit, but not all together. Variables count.
func TestEvaluate_CostBudget(t *testing.T) {
	for name, spec := range map[string]string{
		"Validations": "validations:\n" + strings.Repeat("- {expression: \"!node.metadata.annotations['a'].contains('yyyyyyyyyy')\"}\n", 64),
		"Variables": "variables:\n" + func() string {
			text := ""
			for i := range 64 {
				text += fmt.Sprintf("- {name: v%d, expression: \"!node.metadata.annotations['a'].contains('yyyyyyyyyy')\"}\n", i)
			}
			return text
		}() + validation("["+strings.Join(func() (all []string) {
			for i := range 64 {
				all = append(all, fmt.Sprintf("variables.v%d", i))
			}
			return all
		}(), ",")+"].all(x, x)"),
	} {
		t.Run(name, func(t *testing.T) {
			s := subject()
			s.Node.Annotations = map[string]string{"a": strings.Repeat("x", 300<<10)}
			r := evaluate(t, spec, s, world())
			assert.Equal(t, policy.Failed, r.Verdict)
			assert.Contains(t, r.Message, "exceed the cost limit per bind")
			assert.Greater(t, r.Cost, uint64(1_000_000))
			assert.Less(t, r.Cost, uint64(1_200_000))
		})
	}
}

// The end of the context interrupts a comprehension, and is not the fault of the policy.
func TestEvaluate_ContextEnds(t *testing.T) {
	o := world()
	o.resources["agents"] = large(1000)
	c := compile(t, "failurePolicy: Ignore\n"+declared+validation("resources.agents.all(a, a.metadata.name != 'x')"))
	ctx, cancel := context.WithCancel(t.Context())
	o.before = cancel
	r, err := c.Evaluate(ctx, subject(), o)
	assert.ErrorIs(t, err, context.Canceled)
	assert.Zero(t, r)
	r, err = c.Evaluate(ctx, subject(), o)
	assert.ErrorIs(t, err, context.Canceled)
	assert.Zero(t, r)
}

func TestEvaluate_Panic(t *testing.T) {
	for _, spec := range []string{
		declared + validation("resources.agents.size() == 0"),
		"matchConstraints: {namespaceSelector: {matchLabels: {a: b}}}\n" + validation("true"),
	} {
		o := world()
		o.before = func() { panic("defect") }
		r := evaluate(t, spec, subject(), o)
		assert.Equal(t, policy.Failed, r.Verdict)
		assert.Contains(t, r.Message, "defect")
	}
}
