// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bindpolicy

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
	"github.com/prebind/prebind/test/fakeapi"
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
)

func metav1Named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }

// gauge returns the number of policies in the state.
func (w *world) gauge(s state) float64 {
	return testutil.ToFloat64(w.metrics.policies.WithLabelValues(string(s)))
}

func TestController_Generations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := policyOf(t, "a", rejectAll)
		w := newWorld(t, first)
		require.True(t, w.HasSynced())
		text, generation := w.status("a")
		assert.Equal(t, inForceText+"1 is in force", text)
		assert.EqualValues(t, 1, generation)
		assert.Empty(t, w.event(), "a policy that was never not ready needs no event")

		second := next(t, first, broken)
		w.put(second)
		assert.Equal(t, map[string]int64{"a": 1}, w.used(), "a broken generation leaves the last good one in force")
		text, generation = w.status("a")
		assert.Contains(t, text, "CompileError: spec.validations[0].expression: ")
		assert.Contains(t, text, "; generation 1 stays in force")
		assert.EqualValues(t, 2, generation)
		assert.Contains(t, w.event(), "Warning BindPolicyNotReady CompileError: spec.validations[0]")
		assert.InDelta(t, 1, w.gauge(stateOutdated), 0)

		third := next(t, second, allowAll)
		w.put(third)
		assert.Equal(t, map[string]int64{"a": 3}, w.used())
		text, _ = w.status("a")
		assert.Equal(t, inForceText+"3 is in force", text)
		assert.Equal(t, "Normal BindPolicyInForce generation 3 is in force", w.event())
		assert.InDelta(t, 1, w.gauge(stateInForce), 0)

		w.server.Remove(third)
		synctest.Wait()
		assert.Empty(t, w.used(), "a deleted policy leaves the set")
		assert.InDelta(t, 0, w.gauge(stateInForce), 0)
	})
}

func TestController_BrokenAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, policyOf(t, "a", broken), policyOf(t, "b", rejectAll))
		assert.True(t, w.HasSynced(), "a broken policy does not delay the start")
		assert.Equal(t, map[string]int64{"b": 1}, w.used())
		text, _ := w.status("a")
		assert.Contains(t, text, "; the policy is not in force")
		assert.InDelta(t, 1, w.gauge(stateNotReady), 0)
	})
}

func TestController_MissingPermissionIsGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := prepareWorld(t, policyOf(t, "a", onCSINode), policyOf(t, "b", rejectAll))
		w.watches.on(func(context.Context, framework.Selection) error {
			return errForbidden
		})
		w.begin()
		assert.Equal(t, map[string]int64{"b": 1}, w.used())
		text, _ := w.status("a")
		assert.Contains(t, text, "Forbidden: spec.resources[csinode]: ")
		assert.Contains(t, w.event(), "Warning BindPolicyNotReady Forbidden: ")
		elapse(time.Minute)
		assert.Empty(t, w.event(), "an event reports a change, not a state")

		w.watches.on(func(context.Context, framework.Selection) error { return nil })
		elapse(maxRetryInterval)
		assert.Equal(t, map[string]int64{"a": 1, "b": 1}, w.used())
		text, _ = w.status("a")
		assert.Equal(t, inForceText+"1 is in force", text)
	})
}

// hang returns a Select that hangs for CSINodes.
func hang(ctx context.Context, s framework.Selection) error {
	if framework.KindOf(s.Example) != "CSINode" {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func TestController_HangingWatchDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := prepareWorld(t, policyOf(t, "a", onCSINode), policyOf(t, "b", rejectAll))
		w.watches.on(hang)
		w.begin()
		assert.Equal(t, map[string]int64{"b": 1}, w.used())
		assert.False(t, w.HasSynced(), "the plugin cannot decide without the objects of a policy")
		w.put(policyOf(t, "c", broken))
		text, _ := w.status("c")
		assert.Contains(t, text, "CompileError", "other policies are not delayed")
		elapse(watchTimeout)
		assert.True(t, w.HasSynced(), "one policy cannot delay the start for ever")
		text, _ = w.status("a")
		assert.Contains(t, text, "WatchFailed: spec.resources[csinode]: ")

		w.server.Remove(policyOf(t, "b", rejectAll))
		synctest.Wait()
		assert.Empty(t, w.used())
	})
}

func TestController_NewGenerationEndsPreparation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := policyOf(t, "a", onCSINode)
		w := prepareWorld(t, first)
		w.watches.on(hang)
		w.begin()
		w.put(next(t, first, rejectAll))
		assert.Equal(t, map[string]int64{"a": 2}, w.used())
		assert.True(t, w.HasSynced())
		elapse(time.Minute)
		text, _ := w.status("a")
		assert.Equal(t, inForceText+"2 is in force", text, "the result of the first generation does not count")
	})
}

func TestController_RecreatedPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, policyOf(t, "a", rejectAll))
		other := policyOf(t, "a", broken)
		other.UID = "other"
		w.put(other)
		assert.Empty(t, w.used(), "a policy with another UID is another policy")
	})
}

func TestController_KeepsUsedWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := policyOf(t, "a", onCSINode)
		w := newWorld(t, first)
		require.Len(t, w.watches.keptNames(), 1)
		assert.Contains(t, w.watches.keptNames()[0], "policy/storage.k8s.io/v1 CSINode by name")
		second := next(t, first, broken)
		w.put(second)
		assert.Len(t, w.watches.keptNames(), 1, "the last good generation needs its watches")
		w.put(next(t, second, rejectAll))
		assert.Empty(t, w.watches.keptNames())
	})
}

func TestController_PanicOfCompiler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := prepareWorld(t, policyOf(t, "a", rejectAll))
		w.compile = func(*v1alpha1.BindPolicy, policy.Options) (*policy.Compiled, error) {
			return compile(nil, policy.Options{})
		}
		w.begin()
		text, _ := w.status("a")
		assert.Contains(t, text, "CompileError: the compiler panicked")
	})
}

func TestStatus_WrittenByLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := prepareWorld(t, policyOf(t, "a", rejectAll))
		w.leads.Store(false)
		w.begin()
		assert.Equal(t, map[string]int64{"a": 1}, w.used(), "every replica applies the policy")
		elapse(time.Minute)
		text, _ := w.status("a")
		assert.Empty(t, text)
		assert.Empty(t, w.server.Writes())
		w.leads.Store(true)
		elapse(checkInterval)
		text, _ = w.status("a")
		assert.Equal(t, inForceText+"1 is in force", text, "the new leader writes the statuses")
		writes := len(w.server.Writes())
		elapse(time.Hour)
		assert.Len(t, w.server.Writes(), writes, "a status that is up to date is not written")
	})
}

func TestStatus_RestoredAfterForeignWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := policyOf(t, "a", rejectAll)
		w := newWorld(t, b)
		fakeapi.Change(w.server, b, "someone", func(b *v1alpha1.BindPolicy) { b.Status = v1alpha1.BindPolicyStatus{} })
		synctest.Wait()
		elapse(checkInterval)
		text, _ := w.status("a")
		assert.Equal(t, inForceText+"1 is in force", text)
	})
}

func TestStatus_FailedWriteIsRepeated(t *testing.T) {
	cases := map[string]error{
		"Conflict": fakeapi.Conflict("BindPolicy", "a"), "Unavailable": errors.New("connection refused"),
	}
	for name, failure := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := prepareWorld(t, policyOf(t, "a", rejectAll))
				var fails atomic.Bool
				fails.Store(true)
				w.api.Before = func(c fakeapi.Call) error {
					if fails.Load() && strings.Contains(c.Verb, "status") {
						return failure
					}
					return nil
				}
				w.begin()
				text, _ := w.status("a")
				assert.Empty(t, text)
				fails.Store(false)
				elapse(checkInterval)
				text, _ = w.status("a")
				assert.Equal(t, inForceText+"1 is in force", text)
			})
		})
	}
}

func TestStatus_Warnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := verdict{known: true, generation: 2, reason: v1alpha1.ReasonInForce, message: "generation 2 is in force", warnings: []v1alpha1.ExpressionWarning{{FieldRef: "spec.waitFor[0].expression", Warning: "undefined field 'x'"}}}
		before := v1alpha1.BindPolicyStatus{Conditions: []metav1.Condition{{Type: "Other", Status: metav1.ConditionTrue}}}
		at := metav1.NewTime(time.Now())
		got := v.status(before, at)
		assert.Equal(t, v.warnings, got.TypeChecking.ExpressionWarnings)
		require.Len(t, got.Conditions, 2, "conditions of others stay")
		assert.Equal(t, at, got.Conditions[1].LastTransitionTime)
		later := metav1.NewTime(at.Add(time.Hour))
		v.warnings = nil
		got = v.status(got, later)
		assert.Nil(t, got.TypeChecking)
		assert.Equal(t, at, got.Conditions[1].LastTransitionTime, "the status did not change")
	})
}

// Policies that read the same objects share a watch with the fields of all of them.
func TestController_SharedWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const (
			withDrivers = "policy/storage.k8s.io/v1 CSINode by name; fields spec.drivers[*].name"
			withBoth    = "policy/storage.k8s.io/v1 CSINode by name; fields metadata.annotations.ready,spec.drivers[*].name"
		)
		w := newWorld(t, policyOf(t, "a", onCSINode))
		assert.Equal(t, []string{withDrivers}, w.watches.keptNames())

		other := policyOf(t, "b", `
resources: [{name: csinode, apiVersion: storage.k8s.io/v1, kind: CSINode, nameExpression: node.metadata.name}]
validations: [{expression: "resources.csinode.metadata.annotations['ready'] == 'yes'"}]
`)
		w.put(other)
		assert.Equal(t, []string{withBoth}, w.watches.keptNames(), "one watch has the fields of both policies")
		for _, e := range w.inForce() {
			assert.Equal(t, withBoth, e.reads.resources["csinode"].Name, "policy %s reads from the shared watch", e.name)
		}
		before := w.set.Load()
		elapse(2 * resyncInterval)
		assert.Same(t, before, w.set.Load(), "nothing changes without a reason")

		w.server.Remove(other)
		synctest.Wait()
		w.put(next(t, policyOf(t, "a", onCSINode), onCSINode+"mode: Audit"))
		assert.Equal(t, []string{withDrivers}, w.watches.keptNames(), "a new generation does not get the fields of deleted policies")
	})
}

// A watch with more fields that does not begin does not affect the policies in force.
func TestController_SharedWatchFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, policyOf(t, "a", onCSINode))
		kept := w.watches.keptNames()
		w.watches.on(func(ctx context.Context, _ framework.Selection) error {
			<-ctx.Done()
			return ctx.Err()
		})
		w.put(policyOf(t, "b", strings.ReplaceAll(onCSINode, "d.name", "d.nodeID")))
		elapse(watchTimeout)
		assert.Subset(t, w.watches.keptNames(), kept)
		assert.Equal(t, map[string]int64{"a": 1}, w.used())
		assert.Equal(t, kept[0], w.inForce()[0].reads.resources["csinode"].Name)
	})
}

// Binds do not escape a policy whose watches begin slowly, for example because the API server is overloaded.
func TestController_UnwatchedPolicyDelaysItsBinds(t *testing.T) {
	cases := map[string]struct {
		reason, spec string
		waits        bool
	}{
		"Enforce":  {reason: "the policy may have been in force before", spec: onCSINode, waits: true},
		"Ignore":   {reason: "failurePolicy allows the bind", spec: onCSINode + "failurePolicy: Ignore"},
		"Audit":    {reason: "mode Audit only reports", spec: onCSINode + "mode: Audit"},
		"Selector": {reason: "the policy selects other pods", spec: onCSINode + "matchConstraints: {schedulerNames: [other]}"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := prepareWorld(t, policyOf(t, "a", tc.spec))
				w.watches.on(func(ctx context.Context, _ framework.Selection) error {
					<-ctx.Done()
					return ctx.Err()
				})
				w.begin()
				elapse(watchTimeout)
				require.True(t, w.HasSynced())
				text, _ := w.status("a")
				assert.Contains(t, text, "WatchFailed: ")
				verdict, err := w.preFlight(w.bind())
				require.NoError(t, err)
				if !tc.waits {
					assert.Zero(t, verdict.Wait, tc.reason)
					return
				}
				assert.Contains(t, text, "; the binds that the policy selects wait")
				assert.InDelta(t, 1, w.gauge(stateNotReady), 0)
				require.NotZero(t, verdict.Wait, tc.reason)
				running, _ := w.start(w.bind())
				ended, err := running.Ended()
				require.False(t, ended, "%v", err)
				w.watches.on(func(context.Context, framework.Selection) error { return nil })
				w.put(policyOf(t, "b", allowAll))
				elapse(retryInterval)
				assert.Equal(t, map[string]int64{"a": 1, "b": 1}, w.used(), "the policy is evaluated when its watches have begun")
			})
		})
	}
}

// A permission that is gone is noticed. The policy stays in force with the objects that the cache has.
func TestController_PermissionIsRevoked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, policyOf(t, "a", onCSINode))
		w.watches.on(func(context.Context, framework.Selection) error {
			return errForbidden
		})
		elapse(recheckInterval)
		assert.Equal(t, map[string]int64{"a": 1}, w.used())
		text, _ := w.status("a")
		assert.Contains(t, text, "Forbidden: ")
		assert.Contains(t, text, "; generation 1 stays in force")
		w.watches.on(func(context.Context, framework.Selection) error { return nil })
		elapse(maxRetryInterval)
		text, _ = w.status("a")
		assert.Equal(t, inForceText+"1 is in force", text)
	})
}
