// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/internal/notify"
	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

func withDriver(name string) *storagev1.CSINode {
	n := gen.CSINode("node-a")
	n.Spec.Drivers = []storagev1.CSINodeDriver{{Name: name, NodeID: "node-a"}}
	return n
}

// bind returns the context of a bind of the pod web to node-a, and creates both.
func (w *world) bind(options ...gen.PodOption) *framework.BindContext {
	pod, node := gen.Pod("web", options...), gen.Node("node-a", gen.Zone("z1"))
	w.server.Put(pod)
	w.server.Put(node)
	w.server.Put(&corev1.Namespace{ObjectMeta: metav1Named(pod.Namespace)})
	stored, _ := fakeapi.Get(w.server, pod)
	storedNode, _ := fakeapi.Get(w.server, node)
	bc := w.cluster.Context(stored, storedNode)
	w.server.Forget()
	return bc
}

func (w *world) preFlight(bc *framework.BindContext) (framework.Verdict, error) {
	return w.cluster.PreFlight(w.t.Context(), bc)
}

// passes returns the verdict of a bind that is not rejected.
func (w *world) passes(bc *framework.BindContext) framework.Verdict {
	w.t.Helper()
	v, err := w.preFlight(bc)
	require.NoError(w.t, err)
	return v
}

// ends requires that the call has ended, and returns its error.
func ends(t *testing.T, call *frameworktest.Running) error {
	t.Helper()
	ended, err := call.Ended()
	require.True(t, ended)
	return err
}

// start posts the Binding.
func (w *world) start(bc *framework.BindContext) (call *frameworktest.Running, last *binder.Decision) {
	last = &binder.Decision{}
	return frameworktest.Start(func() error {
		if *last = w.cluster.Post(w.t.Context(), bc.Pod, bc.Node.Name); last.Err != nil {
			return last.Err
		}
		return nil
	}), last
}

// results returns the counter of a result of the enforced policy a.
func (w *world) results(v policy.Verdict) float64 {
	return testutil.ToFloat64(w.metrics.results.WithLabelValues("a", "enforce", string(v)))
}

func TestPreFlight(t *testing.T) {
	const nodeZone = `mutations: {annotations: [{key: zone, valueExpression: "node.metadata.labels['topology.kubernetes.io/zone']"}], labels: [{key: zone, valueExpression: "'a'"}]}`
	const sameKey = `mutations: {annotations: [{key: example.com/a, valueExpression: "'%'"}]}`
	for name, tc := range map[string]struct {
		reason   string
		policies map[string]string
		objects  []client.Object
		pod      []gen.PodOption

		refused             string
		annotations, labels map[string]string
		findings            []framework.Finding
		warnings            []string
		// event is reported when the bind is decided.
		event string
	}{
		"Annotated": {
			reason:      "all policies add their keys",
			policies:    map[string]string{"a": nodeZone, "b": nodeZone},
			annotations: map[string]string{"a.policy.prebind.dev/zone": "z1", "b.policy.prebind.dev/zone": "z1"},
			labels:      map[string]string{"a.policy.prebind.dev/zone": "a", "b.policy.prebind.dev/zone": "a"},
			findings:    []framework.Finding{{Name: "a", Verdict: "allowed"}, {Name: "b", Verdict: "allowed"}},
		},
		"Rejected": {
			reason: "a rejection is confirmed with live objects", policies: map[string]string{"a": rejectAll, "b": nodeZone},
			refused:  "BindPolicy a: no; choose another node, or see spec.validations[0] of the policy",
			findings: []framework.Finding{{Name: "a", Verdict: "rejected", Message: "no"}, {Name: "b", Verdict: "allowed"}},
		},
		"Audit": {
			reason: "a policy in mode Audit only reports", policies: map[string]string{"a": rejectAll + "\nmode: Audit"},
			findings: []framework.Finding{{Name: "a", Verdict: "rejected (audit)", Message: "no"}},
			warnings: []string{"policy: BindPolicy a: audit: the bind would be rejected: no"},
			event:    "Warning BindPolicyAudited policy: BindPolicy a: audit: the bind would be rejected: no",
		},
		"AuditWaiting": {
			reason: "a policy in mode Audit delays nothing", policies: map[string]string{"a": onCSINode + "mode: Audit"},
			findings: []framework.Finding{{Name: "a", Verdict: "waiting (audit)", Message: "driver csi is missing"}},
			warnings: []string{"policy: BindPolicy a: audit: the bind would wait for driver: driver csi is missing"},
			event:    "Warning BindPolicyAudited policy: BindPolicy a: audit: the bind would wait for driver: driver csi is missing",
		},
		"SameKey": {
			reason: "the later policy wins", policies: map[string]string{"a": sameKey, "b": sameKey},
			annotations: map[string]string{"example.com/a": "%"},
			findings:    []framework.Finding{{Name: "a", Verdict: "allowed"}, {Name: "b", Verdict: "allowed"}},
			warnings:    []string{"policy: BindPolicy b: replaces the annotation example.com/a of BindPolicy a"},
		},
		"Claims": {
			reason: "claims are read by the name of the volume", pod: []gen.PodOption{gen.UsesClaim("data")}, objects: []client.Object{gen.Claim("data", gen.OfClass("fast"))},
			policies:    map[string]string{"a": `mutations: {annotations: [{key: class, valueExpression: "claims['data'].spec.storageClassName"}]}`},
			annotations: map[string]string{"a.policy.prebind.dev/class": "fast"},
			findings:    []framework.Finding{{Name: "a", Verdict: "allowed"}},
		},
		"OnNode": {
			reason: "only the objects on the node count",
			objects: []client.Object{
				gen.Pod("cni-a", gen.InNamespace("kube-system"), gen.BoundTo("node-a"), gen.Label("app", "cni")),
				gen.Pod("cni-b", gen.InNamespace("kube-system"), gen.BoundTo("node-b"), gen.Label("app", "cni")),
				gen.Pod("dns", gen.InNamespace("kube-system"), gen.BoundTo("node-a"), gen.Label("app", "dns")),
			},
			policies: map[string]string{"a": `
resources: [{name: agents, apiVersion: v1, kind: Pod, namespace: kube-system, labelSelector: {matchLabels: {app: cni}}, onNode: true}]
mutations: {annotations: [{key: agents, valueExpression: "resources.agents.map(a, a.metadata.name).join(',')"}]}
`},
			annotations: map[string]string{"a.policy.prebind.dev/agents": "cni-a"},
			findings:    []framework.Finding{{Name: "a", Verdict: "allowed"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := prepareWorld(t, tc.objects...)
				w.compiler.options.KeyPrefixes = []string{"example.com"}
				w.begin()
				for name, spec := range tc.policies {
					w.put(policyOf(t, name, spec))
					require.Equal(t, inForceText+"1 is in force", w.status(name))
				}
				bc := w.bind(tc.pod...)
				verdict, err := w.preFlight(bc)
				assert.Zero(t, w.server.Reads(), tc.reason)
				if tc.refused != "" {
					require.EqualError(t, err, tc.refused, tc.reason)
				} else {
					require.NoError(t, err, tc.reason)
				}
				assert.Equal(t, tc.annotations, verdict.Annotations, tc.reason)
				assert.Equal(t, tc.labels, verdict.Labels, tc.reason)
				assert.Equal(t, tc.findings, verdict.Findings, tc.reason)
				assert.Equal(t, tc.warnings, verdict.Warnings, tc.reason)
				assert.Empty(t, verdict.Wait.For, tc.reason)
				assert.Empty(t, w.event(), "a pass is not a decision")
				w.BindDecided(t.Context(), bc)
				assert.Equal(t, tc.event, w.event(), tc.reason)
			})
		})
	}
}

// A policy in mode Audit never changes the result of a bind, not even by a failed read.
func TestPreFlight_FailedRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, policyOf(t, "a", onCSINode+"mode: Audit"), policyOf(t, "b", onCSINode))
		bc := w.bind()
		w.cluster.Handle.Cached = w.api
		w.api.Before = func(c fakeapi.Call) error {
			if c.Kind == "CSINodeList" {
				return errors.New("no route to host")
			}
			return nil
		}
		verdict := w.passes(bc)
		assert.Contains(t, verdict.Wait.For, "no route to host", "the next read can succeed")
		assert.Equal(t, "b", verdict.Wait.Object.Name)
		w.server.Remove(policyOf(t, "b", onCSINode))
		synctest.Wait()
		verdict = w.passes(bc)
		assert.Zero(t, verdict.Wait)
		assert.Contains(t, verdict.Warnings[0], "audit: the bind would wait for")
	})
}

func TestPreFlight_NotMatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, policyOf(t, "a", onCSINode+"matchConstraints: {schedulerNames: [other]}"))
		bc := w.bind()
		assert.Empty(t, w.passes(bc).Findings)
		bc.DryRun = true
		want := framework.Finding{Name: "a", Verdict: "not-matched", Message: "spec.matchConstraints.schedulerNames"}
		assert.Equal(t, []framework.Finding{want}, w.passes(bc).Findings)
	})
}

func TestBind_WaitsForObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, policyOf(t, "a", onCSINode+`mutations: {annotations: [{key: done, valueExpression: "'yes'"}]}`))
		call, last := w.start(w.bind())
		assert.InDelta(t, 1, w.results(policy.Waiting), 0)
		w.server.Put(withDriver("other"))
		elapse(pace)
		ended, err := call.Ended()
		require.False(t, ended, "%v", err)
		w.server.Put(withDriver("csi"))
		elapse(pace)
		require.NoError(t, ends(t, call), "the change of the object wakes the bind")
		assert.Equal(t, "yes", last.Annotations["a.policy.prebind.dev/done"])
		assert.InDelta(t, 1, w.results(policy.Waiting), 0, "repeated passes do not count")
		assert.InDelta(t, 1, w.results(policy.Allowed), 0)
	})
}

// pace is longer than the pause between two passes.
const pace = 100 * time.Millisecond

// The timeout of a wait can end between two calls. The next call does not wait again.
func TestBind_TimesOutWithAllow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, policyOf(t, "a", `waitFor: [{name: never, expression: "false", timeout: 10s, onTimeout: Allow}]`))
		w.cluster.Hold = 5 * time.Second
		bc := w.bind()
		call, _ := w.start(bc)
		elapse(w.cluster.Hold)
		ended, err := call.Ended()
		require.True(t, ended)
		require.True(t, frameworktest.IsKind(err, framework.KindWait), "%v", err)
		elapse(10 * time.Second)
		call, last := w.start(bc)
		require.NoError(t, ends(t, call))
		assert.Equal(t, []string{"policy: BindPolicy a: the wait never timed out, and onTimeout allows the bind"}, last.Warnings)
		assert.InDelta(t, 1, w.results(resultWaived), 0)
		call, _ = w.start(bc)
		require.NoError(t, ends(t, call), "a later webhook changed the Binding, so the API server calls again")
	})
}

func TestBind_PolicyChanges(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(w *world)
		want   string
	}{
		"Deleted":  {reason: "a deleted policy releases the binds that wait for it", change: func(w *world) { w.server.Remove(policyOf(w.t, "a", onCSINode)) }},
		"Replaced": {reason: "a bind is judged by the new set", change: func(w *world) { w.put(next(w.t, policyOf(w.t, "a", onCSINode), allowAll)) }},
		"Rejects":  {reason: "a bind is judged by the new set", change: func(w *world) { w.put(policyOf(w.t, "b", rejectAll)) }, want: "BindPolicy b: no"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, policyOf(t, "a", onCSINode))
				call, _ := w.start(w.bind())
				tc.change(w)
				elapse(binder.Settle + pace)
				if err := ends(t, call); tc.want != "" {
					require.ErrorContains(t, err, tc.want, tc.reason)
				} else {
					require.NoError(t, err, tc.reason)
				}
			})
		})
	}
}

// An edited policy is in force as before until its new generation is ready: an edit does not release the binds that wait for it.
func TestBind_PolicyEdited(t *testing.T) {
	spec := strings.Replace(onCSINode, "{name: driver", "{timeout: 1h, name: driver", 1) + "failurePolicy: Ignore"
	const csiDrivers, csiNodes, audit = "resources: [{name: drivers, apiVersion: storage.k8s.io/v1, kind: CSIDriver}, ", "CSINode", "\nmode: Audit"
	forbidden := func(_ context.Context, s framework.Selection) error {
		if framework.KindOf(s.Example) == csiNodes {
			return nil
		}
		return errForbidden
	}
	for name, tc := range map[string]struct {
		reason    string
		spec      string
		selecting func(context.Context, framework.Selection) error
		says      string
		ends      bool
	}{
		"Slow":      {reason: "the watch can begin later", selecting: hang, says: "the watch of CSINode objects did not begin"},
		"Forbidden": {reason: "the role can come later", spec: strings.Replace(spec, "resources: [", csiDrivers, 1), selecting: forbidden, says: "csinodes.storage.k8s.io is forbidden"},
		"Audit":     {reason: "the mode stops the policy", spec: strings.Replace(spec, "resources: [", csiDrivers, 1) + audit, selecting: forbidden, says: "csinodes.storage.k8s.io is forbidden", ends: true},
		"Lost": {
			reason: "the earlier version would decide from old objects", ends: true, says: "csinodes.storage.k8s.io is forbidden",
			selecting: func(context.Context, framework.Selection) error { return errForbidden },
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, policyOf(t, "a", spec))
				call, _ := w.start(w.bind())
				w.compiler.build = func(b *v1alpha1.BindPolicy, o policy.Options) (*policy.Compiled, error) {
					elapseMinute()
					return build(b, o)
				}
				w.watches.on(tc.selecting)
				w.put(next(t, policyOf(t, "a", spec), cmp.Or(tc.spec, spec)+"\nmutations: {annotations: [{key: edited, valueExpression: \"'yes'\"}]}"))
				elapse(time.Minute - 1)
				ended, err := call.Ended()
				require.False(t, ended, "it is compiled: %v", err)
				elapse(time.Minute)
				ended, err = call.Ended()
				require.Equal(t, tc.ends, ended, "%s: %v", tc.reason, err)
				assert.Contains(t, w.status("a"), tc.says)
				assert.Equal(t, !tc.ends, strings.Contains(w.status("a"), "; the earlier version stays in force"), tc.reason)
				assert.InDelta(t, 1, testutil.ToFloat64(w.metrics.policies.WithLabelValues(stateNotReady)), 0, "an alert says that the edit has no effect")
				if tc.ends {
					return
				}
				w.watches.on(func(context.Context, framework.Selection) error { return nil })
				elapse(recheckInterval)
				assert.Equal(t, map[string]int64{"a": 2}, w.used())
				w.server.Put(withDriver("csi"))
				elapse(binder.Settle + pace)
				require.NoError(t, ends(t, call))
			})
		})
	}
}

// A policy that was deleted and created again replaces the earlier one, also if one list shows both changes.
func TestBind_PolicyRecreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, policyOf(t, "a", allowAll))
		again := policyOf(t, "a", rejectAll)
		again.UID = "another"
		w.server.Put(again)
		elapse(recheckInterval)
		assert.Equal(t, inForceText+"1 is in force", w.status("a"))
		_, err := w.preFlight(w.bind())
		require.Error(t, err)

		w.watches.on(hang)
		w.server.Put(policyOf(t, "a", onCSINode))
		elapse(time.Second)
		assert.Contains(t, w.passes(w.bind()).Wait.For, "its watch begins", "the earlier policy does not stay in force")
	})
}

// An event that ends a rejection and a wait is not late.
func TestBind_RejectsAndWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const csiNode = "resources: [{name: csinode, apiVersion: storage.k8s.io/v1, kind: CSINode, nameExpression: node.metadata.name}]\n"
		w := newWorld(t, policyOf(t, "a", csiNode+`validations: [{expression: "resources.csinode != null"}]`), policyOf(t, "b", onCSINode))
		began := time.Now()
		time.AfterFunc(200*time.Millisecond, func() { w.server.Put(withDriver("csi")) })
		require.Nil(t, w.cluster.Post(t.Context(), w.bind().Pod, "node-a").Err)
		assert.LessOrEqual(t, time.Since(began), 200*time.Millisecond+pace)
	})
}

func TestStatusDoesNotWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := policyOf(t, "a", `waitFor: [{name: never, expression: "false"}]`)
		w := newWorld(t, b)
		woken := w.cluster.Changes.Subscribe(notify.AllBinds())
		defer woken.Close()
		isWoken := func() bool {
			select {
			case <-woken.C():
				return true
			default:
				return false
			}
		}
		fakeapi.Change(w.server, b, "someone", func(b *v1alpha1.BindPolicy) { b.Status = v1alpha1.BindPolicyStatus{} })
		elapse(2 * checkInterval)
		assert.False(t, isWoken(), "a status wakes no bind")
		assert.Equal(t, inForceText+"1 is in force", w.status("a"), "the status is restored after a foreign write")
		w.put(policyOf(t, "b", allowAll))
		assert.True(t, isWoken(), "another set wakes the binds")
	})
}

func TestPreFlight_WithoutPoliciesCostsNothing(t *testing.T) {
	p := newPlugin(framework.Handle{}, &Arguments{}, newMetrics(), nil)
	bc := &framework.BindContext{Pod: gen.Pod("web"), Node: gen.Node("node-a")}
	// A nil reader shows that nothing is read.
	assert.LessOrEqual(t, testing.AllocsPerRun(100, func() {
		if err := p.SetupBindContextExtension(t.Context(), nil, bc); err != nil {
			t.Error(err)
		}
	}), 1.0)
}

// Policies see the request as the client sent it: mode Audit shows what Enforce would do.
func TestSubjectOf_Audit(t *testing.T) {
	assert.False(t, subjectOf(&framework.BindContext{DryRun: true, Audit: true}).DryRun)
	assert.True(t, subjectOf(&framework.BindContext{DryRun: true}).DryRun)
}
