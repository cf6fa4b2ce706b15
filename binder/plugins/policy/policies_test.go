// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

const (
	rejectAll = `validations: [{expression: "false", message: "no"}]`
	allowAll  = `validations: [{expression: "true"}]`
	broken    = `validations: [{expression: "node.metadata.nmae == 'a'"}]`
	// onCSINode reads a CSINode.
	onCSINode = `
resources: [{name: csinode, apiVersion: storage.k8s.io/v1, kind: CSINode, nameExpression: node.metadata.name}]
waitFor: [{name: driver, expression: "resources.csinode != null && resources.csinode.spec.drivers.exists(d, d.name == 'csi')", message: "driver csi is missing"}]
`
	inForceText = "InForce: generation "
	// follows ends the message of a policy that is not ready.
	follows = "; the binds that it selects wait or are rejected (failurePolicy Fail)"
)

func metav1Named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }

// gauge returns the number of policies in the state.
func (w *world) gauge(s string) float64 {
	return testutil.ToFloat64(w.metrics.policies.WithLabelValues(s))
}

func TestController_Generations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := policyOf(t, "a", allowAll)
		w := newWorld(t, first)
		require.True(t, w.HasSynced())
		assert.Equal(t, inForceText+"1 is in force", w.status("a"))
		assert.Empty(t, w.event(), "a policy that was never not ready needs no event")

		second := next(t, first, broken)
		w.put(second)
		_, err := w.preFlight(w.bind())
		require.ErrorContains(t, err, "spec.validations[0].expression: ", "a generation that does not compile follows its failure policy")
		assert.Contains(t, w.status("a"), "CompileError: spec.validations[0].expression: ")
		assert.Contains(t, w.status("a"), follows)
		assert.Contains(t, w.event(), "Warning BindPolicyNotReady CompileError: spec.validations[0]")
		assert.InDelta(t, 1, w.gauge(stateNotReady), 0)

		third := next(t, second, broken+"\nfailurePolicy: Ignore")
		w.put(third)
		verdict := w.passes(w.bind())
		assert.Contains(t, verdict.Warnings[0], "skipped because it cannot be evaluated")
		assert.Contains(t, w.status("a"), "; binds ignore it (failurePolicy Ignore)")

		fourth := next(t, third, rejectAll)
		w.put(fourth)
		assert.Equal(t, map[string]int64{"a": 4}, w.used())
		assert.Equal(t, inForceText+"4 is in force", w.status("a"))
		assert.Equal(t, "Normal BindPolicyInForce generation 4 is in force", w.event())
		assert.InDelta(t, 1, w.gauge(stateInForce), 0)

		w.server.Remove(fourth)
		synctest.Wait()
		assert.Empty(t, *w.set.Load(), "a deleted policy leaves the set")
		assert.InDelta(t, 0, w.gauge(stateInForce), 0)
	})
}

func TestController_MissingPermissionIsGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := prepareWorld(t, policyOf(t, "a", onCSINode), policyOf(t, "b", allowAll))
		w.watches.on(func(context.Context, framework.Selection) error { return errForbidden })
		w.begin()
		assert.Equal(t, map[string]int64{"b": 1}, w.used())
		assert.Contains(t, w.status("a"), "Forbidden: spec.resources[csinode]: ")
		assert.Contains(t, w.event(), "Warning BindPolicyNotReady Forbidden: ")
		elapse(time.Minute)
		assert.Empty(t, w.event(), "an event reports a change, not a state")

		w.watches.on(func(context.Context, framework.Selection) error { return nil })
		elapse(recheckInterval)
		assert.Equal(t, map[string]int64{"a": 1, "b": 1}, w.used())
		assert.Equal(t, inForceText+"1 is in force", w.status("a"))

		w.watches.on(func(context.Context, framework.Selection) error { return errForbidden })
		elapse(recheckInterval)
		assert.Equal(t, map[string]int64{"b": 1}, w.used(), "a permission that is gone is noticed")
	})
}

// A policy that reads objects that it never gets is not in force.
func TestController_OwnNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := prepareWorld(t, policyOf(t, "a", "resources: [{name: gates, apiVersion: v1, kind: ConfigMap, namespace: prebind-system, labelSelector: {}}]\n"+allowAll))
		w.begin()
		assert.Empty(t, w.used())
		assert.Contains(t, w.status("a"), "Forbidden: spec.resources[gates]: policies cannot read objects in Prebind's own namespace; put the objects into another one")
	})
}

// hang is a Select that hangs for CSINodes.
func hang(ctx context.Context, s framework.Selection) error {
	if framework.KindOf(s.Example) != "CSINode" {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

// Binds do not escape a policy whose watches begin slowly, and other policies are not delayed.
func TestController_HangingWatch(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, spec string
		waits        bool
	}{
		"Fail":     {reason: "failurePolicy delays the bind", spec: onCSINode, waits: true},
		"Ignore":   {reason: "failurePolicy allows the bind", spec: onCSINode + "failurePolicy: Ignore"},
		"Audit":    {reason: "mode Audit only reports", spec: onCSINode + "mode: Audit"},
		"Selector": {reason: "the policy selects other pods", spec: onCSINode + "matchConstraints: {schedulerNames: [other]}"},
		"Namespace": {
			reason: "the policy selects other namespaces, whose watch always runs",
			spec:   onCSINode + "matchConstraints: {namespaceSelector: {matchLabels: {team: other}}}",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := prepareWorld(t, policyOf(t, "a", tc.spec), policyOf(t, "b", allowAll), &corev1.Namespace{ObjectMeta: metav1Named(gen.DefaultNamespace)})
				w.watches.on(hang)
				w.begin()
				assert.Equal(t, name != "Ignore", w.HasSynced(), "one policy delays the start only if binds do not wait for it")
				assert.Equal(t, map[string]int64{"b": 1}, w.used(), "other policies are not delayed")
				verdict := w.passes(w.bind())
				assert.Equal(t, tc.waits, verdict.Wait.For != "", tc.reason)
				elapse(watchTimeout)
				assert.Contains(t, w.status("a"), "WatchFailed: spec.resources[csinode]: ")
				if !tc.waits {
					return
				}
				running, _ := w.start(w.bind())
				ended, err := running.Ended()
				require.False(t, ended, "%v", err)
				w.watches.on(func(context.Context, framework.Selection) error { return nil })
				w.server.Put(withDriver("csi"))
				elapse(recheckInterval)
				assert.Equal(t, map[string]int64{"a": 1, "b": 1}, w.used(), "the policy is evaluated when its watches have begun")
				require.NoError(t, ends(t, running))
			})
		})
	}
}

// A restart does not release the binds that wait for a policy with failurePolicy Ignore. The wait has a limit.
func TestController_StartsWithIgnore(t *testing.T) {
	const ignore = "failurePolicy: Ignore"
	for name, tc := range map[string]struct {
		reason, spec string
		compiles     time.Duration
		selects      func(ctx context.Context, s framework.Selection) error
		policies     int
		after        time.Duration
	}{
		"InForce":   {reason: "its watches begin at once", spec: onCSINode + ignore, policies: 1},
		"Compiles":  {reason: "it is being compiled", spec: rejectAll + "\n" + ignore, compiles: time.Second, policies: 1, after: time.Second},
		"Broken":    {reason: "time does not help", spec: broken + "\n" + ignore, policies: 1},
		"Forbidden": {reason: "a person has to help", spec: onCSINode + ignore, selects: func(context.Context, framework.Selection) error { return errForbidden }, policies: 1},
		"Slow": {
			reason: "its watch begins slowly", spec: onCSINode + ignore, policies: 1, after: 5 * time.Second,
			selects: func(context.Context, framework.Selection) error { <-time.After(5 * time.Second); return nil },
		},
		"Hang": {reason: "policies with watches that hang do not add up", spec: onCSINode + ignore, selects: hang, policies: 100, after: watchTimeout},
		"Slots": {
			reason: "policies that are compiled slowly do not add up", spec: rejectAll + "\n" + ignore,
			compiles: watchTimeout / 2, policies: 10 * maxCompiles, after: watchTimeout,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var all []client.Object
				for i := range tc.policies {
					all = append(all, policyOf(t, fmt.Sprintf("p%d", i), tc.spec))
				}
				w := prepareWorld(t, all...)
				w.compiler.build = func(b *v1alpha1.BindPolicy, o policy.Options) (*policy.Compiled, error) {
					<-time.After(tc.compiles)
					return build(b, o)
				}
				if tc.selects != nil {
					w.watches.on(tc.selects)
				}
				w.begin()
				if tc.after > 0 {
					elapse(tc.after - time.Millisecond)
					assert.False(t, w.HasSynced(), tc.reason)
					elapse(time.Millisecond)
				}
				assert.True(t, w.HasSynced(), tc.reason)
				elapse(time.Duration(tc.policies) * tc.compiles) // Until all compilations end.
			})
		})
	}
}

func TestController_NewGenerationEndsPreparation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := policyOf(t, "a", onCSINode)
		w := prepareWorld(t, first)
		w.watches.on(hang)
		w.begin()
		w.put(next(t, first, rejectAll))
		assert.Equal(t, map[string]int64{"a": 2}, w.used())
		elapse(time.Minute)
		assert.Equal(t, inForceText+"2 is in force", w.status("a"), "the result of the first generation does not count")
	})
}

func TestController_KeepsUsedWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := policyOf(t, "a", onCSINode)
		w := newWorld(t, first)
		assert.Equal(t, []string{"policy/storage.k8s.io/v1 CSINode by name"}, w.watches.keptNames())
		w.put(next(t, first, rejectAll))
		assert.Empty(t, w.watches.keptNames())
	})
}

// A policy that makes the compiler panic delays neither the start nor other policies.
func TestController_CompilerPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := prepareWorld(t, policyOf(t, "a", rejectAll), policyOf(t, "b", rejectAll), policyOf(t, "c", rejectAll), policyOf(t, "d", allowAll))
		w.compiler.build = func(b *v1alpha1.BindPolicy, o policy.Options) (*policy.Compiled, error) {
			if b.Name == "d" {
				return build(b, o)
			}
			return build(nil, policy.Options{})
		}
		w.begin()
		assert.Equal(t, map[string]int64{"d": 1}, w.used())
		assert.Contains(t, w.status("a"), "CompileError: the compiler panicked")
		_, err := w.preFlight(w.bind())
		require.Error(t, err, "time does not help")
	})
}

// A slow processor does not make a policy wrong.
func TestController_SlowCompiler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := prepareWorld(t, policyOf(t, "a", rejectAll), policyOf(t, "b", allowAll))
		w.compiler.build = func(b *v1alpha1.BindPolicy, o policy.Options) (*policy.Compiled, error) {
			if b.Name == "a" {
				elapseMinute()
			}
			return build(b, o)
		}
		w.begin()
		assert.True(t, w.HasSynced())
		assert.Equal(t, map[string]int64{"b": 1}, w.used())
		verdict, err := w.preFlight(w.bind())
		require.NoError(t, err)
		assert.Contains(t, verdict.Wait.For, "it is being compiled")
		elapse(time.Minute)
		assert.Equal(t, map[string]int64{"a": 1, "b": 1}, w.used())
	})
}

// A policy is in force before the API server answers for the schemas of custom resources.
func TestController_SlowSchemas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := prepareWorld(t, policyOf(t, "a", "resources: [{name: racks, apiVersion: example.com/v1, kind: Rack}]\n"+rejectAll))
		w.compiler.discovery = &discovery.DiscoveryClient{}
		w.compiler.build = func(b *v1alpha1.BindPolicy, o policy.Options) (*policy.Compiled, error) {
			if o.Schemas != nil {
				elapseMinute()
			}
			return build(b, o)
		}
		w.begin()
		assert.Equal(t, map[string]int64{"a": 1}, w.used())
		elapseMinute() // Until the check ends.
	})
}

// Binds that wait are not evaluated again because a policy is checked again.
func TestController_CheckWakesNoBind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, policyOf(t, "a", onCSINode))
		elapse(checkInterval)
		before := (*w.set.Load())[0]
		elapse(10 * recheckInterval)
		assert.Same(t, before, (*w.set.Load())[0])
	})
}

// A caller that does not wait for its policy, as anyone who can connect can be, does not let more policies be compiled at the same time.
func TestCompiler_AbandonedCompilation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCompiler(policy.Options{}, nil)
		running := make(chan struct{}, 10)
		c.build = func(*v1alpha1.BindPolicy, policy.Options) (*policy.Compiled, error) {
			running <- struct{}{}
			elapseMinute()
			return nil, nil
		}
		for range cap(running) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := c.Compile(ctx, policyOf(t, "a", allowAll))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			cancel()
		}
		assert.Len(t, running, maxCompiles)
		elapse(time.Minute)
	})
}

// The schemas of custom resources are only for warnings.
func TestCompiler_SlowSchemas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCompiler(policy.Options{}, &discovery.DiscoveryClient{})
		c.build = func(b *v1alpha1.BindPolicy, o policy.Options) (*policy.Compiled, error) {
			if o.Schemas != nil {
				elapseMinute()
			}
			return build(b, o)
		}
		began := time.Now()
		for range 3 { // More than the slots.
			compiled, err := c.Compile(t.Context(), policyOf(t, "a", "resources: [{name: racks, apiVersion: example.com/v1, kind: Rack}]\n"+allowAll))
			require.NoError(t, err)
			assert.NoError(t, compiled.Err())
		}
		assert.Equal(t, 3*schemasTimeout, time.Since(began))
		elapseMinute() // Until the other compilations end.
	})
}

func TestStatus_WrittenByLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := prepareWorld(t, policyOf(t, "a", rejectAll))
		w.leads.Store(false)
		w.begin()
		assert.Equal(t, map[string]int64{"a": 1}, w.used(), "every replica applies the policy")
		elapse(time.Minute)
		assert.Empty(t, w.status("a"))
		assert.Empty(t, w.server.Writes())
		w.leads.Store(true)
		elapse(checkInterval)
		assert.Equal(t, inForceText+"1 is in force", w.status("a"), "the new leader writes the statuses")
		writes := len(w.server.Writes())
		elapse(time.Hour)
		assert.Len(t, w.server.Writes(), writes, "a status that is up to date is not written")
	})
}

func TestStatus_FailedWriteIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := prepareWorld(t, policyOf(t, "a", rejectAll))
		var tries atomic.Int32
		failures := []error{fakeapi.Conflict("BindPolicy", "a"), errors.New("connection refused")}
		w.api.Before = func(c fakeapi.Call) error {
			if n := int(tries.Load()); strings.Contains(c.Verb, "status") && n < len(failures) {
				tries.Add(1)
				return failures[n]
			}
			return nil
		}
		w.begin()
		for range failures {
			assert.Empty(t, w.status("a"))
			elapse(checkInterval)
		}
		assert.Equal(t, inForceText+"1 is in force", w.status("a"))
	})
}

func TestStatus_Warnings(t *testing.T) {
	v := verdict{reason: v1alpha1.ReasonInForce, message: "generation 2 is in force", warnings: []v1alpha1.ExpressionWarning{{FieldRef: "spec.waitFor[0].expression", Warning: "undefined field 'x'"}}}
	before := v1alpha1.BindPolicyStatus{Conditions: []metav1.Condition{{Type: "Other", Status: metav1.ConditionTrue}}}
	at := metav1.NewTime(time.Now())
	got := v.status(2, before, at)
	assert.Equal(t, v.warnings, got.TypeChecking.ExpressionWarnings)
	require.Len(t, got.Conditions, 2, "conditions of others stay")
	assert.Equal(t, at, got.Conditions[1].LastTransitionTime)
	later := metav1.NewTime(at.Add(time.Hour))
	v.warnings = nil
	got = v.status(2, got, later)
	assert.Nil(t, got.TypeChecking)
	assert.Equal(t, at, got.Conditions[1].LastTransitionTime, "the status did not change")
}
