// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bindpolicy

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/policy"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/plugintest"
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
	bc := plugintest.Bind(stored, storedNode)
	w.server.Forget()
	return bc
}

func (w *world) preFlight(bc *framework.BindContext) (framework.Next, error) {
	return plugintest.PreFlight(w.t.Context(), w.h, w, bc)
}

func (w *world) start(bc *framework.BindContext) *plugintest.Running {
	return plugintest.Start(func() error { return w.PreBind(w.t.Context(), bc) })
}

// results returns the counter of a result.
func (w *world) results(name, mode string, v policy.Verdict) float64 {
	return testutil.ToFloat64(w.metrics.results.WithLabelValues(name, mode, string(v)))
}

func TestPreFlight(t *testing.T) {
	const nodeZone = `mutations: {annotations: [{key: zone, valueExpression: "node.metadata.labels['topology.kubernetes.io/zone']"}], labels: [{key: zone, valueExpression: "'a'"}]}`
	cases := map[string]struct {
		reason   string
		policies map[string]string
		objects  []client.Object
		pod      []gen.PodOption

		next        framework.Next
		refused     string
		waits       string
		annotations map[string]string
		labels      map[string]string
		findings    []framework.Finding
		warnings    []string
		event       string
		// live is the number of reads from the API server.
		live int
	}{
		"NoPolicy": {reason: "there is nothing to do", next: framework.Skip},
		"NotMatched": {
			reason: "the policy selects other pods", next: framework.Skip,
			policies: map[string]string{"a": rejectAll + "\nmatchConstraints: {schedulerNames: [other]}"},
		},
		"Annotated": {
			reason: "all policies add their keys", next: framework.Skip,
			policies:    map[string]string{"a": nodeZone, "b": nodeZone},
			annotations: map[string]string{"a.policy.prebind.dev/zone": "z1", "b.policy.prebind.dev/zone": "z1"},
			labels:      map[string]string{"a.policy.prebind.dev/zone": "a", "b.policy.prebind.dev/zone": "a"},
			findings:    []framework.Finding{{Name: "a", Verdict: "allowed"}, {Name: "b", Verdict: "allowed"}},
		},
		"Rejected": {
			reason: "a rejection is confirmed with live objects", policies: map[string]string{"a": rejectAll, "b": nodeZone},
			refused: "BindPolicy a: no; choose another node, or see spec.validations[0] of the policy", next: framework.Run, live: 1,
			findings: []framework.Finding{{Name: "a", Verdict: "rejected", Message: "no"}, {Name: "b", Verdict: "allowed"}},
		},
		"Audit": {
			reason: "a policy in mode Audit only reports", policies: map[string]string{"a": rejectAll + "\nmode: Audit"}, next: framework.Skip,
			findings: []framework.Finding{{Name: "a", Verdict: "rejected (audit)", Message: "no"}},
			warnings: []string{"policy: BindPolicy a: audit: the bind would be rejected: no"},
			event:    "Warning BindPolicyAudited policy: BindPolicy a: audit: the bind would be rejected: no",
		},
		"Waiting": {
			reason: "the bind waits without a request", policies: map[string]string{"a": onCSINode}, next: framework.Run, waits: "driver: driver csi is missing",
			findings: []framework.Finding{{Name: "a", Verdict: "waiting", Message: "driver csi is missing"}},
		},
		"AuditWaiting": {
			reason: "a policy in mode Audit delays nothing", policies: map[string]string{"a": onCSINode + "mode: Audit"}, next: framework.Skip,
			findings: []framework.Finding{{Name: "a", Verdict: "waiting (audit)", Message: "driver csi is missing"}},
			warnings: []string{"policy: BindPolicy a: audit: the bind would wait for driver: driver csi is missing"},
			event:    "Warning BindPolicyAudited policy: BindPolicy a: audit: the bind would wait for driver: driver csi is missing",
		},
		"Registered": {
			reason: "the bind needs no wait", policies: map[string]string{"a": onCSINode}, objects: []client.Object{withDriver("csi")}, next: framework.Skip,
			findings: []framework.Finding{{Name: "a", Verdict: "allowed"}},
		},
		"Claims": {
			reason: "claims are read by the name of the volume", next: framework.Skip, pod: []gen.PodOption{gen.UsesClaim("data")}, objects: []client.Object{gen.Claim("data", gen.OfClass("fast"))},
			policies:    map[string]string{"a": `mutations: {annotations: [{key: class, valueExpression: "claims['data'].spec.storageClassName"}]}`},
			annotations: map[string]string{"a.policy.prebind.dev/class": "fast"},
			findings:    []framework.Finding{{Name: "a", Verdict: "allowed"}},
		},
		"OnNode": {
			reason: "only the objects on the node count", next: framework.Skip,
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
		"Ignored": {
			reason: "a policy that fails is skipped", policies: map[string]string{"a": `{validations: [{expression: "node.metadata.labels['none'] == 'a'"}], failurePolicy: Ignore}`}, next: framework.Skip,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, tc.objects...)
				for name, spec := range tc.policies {
					w.put(policyOf(t, name, spec))
					status, _ := w.status(name)
					require.Equal(t, inForceText+"1 is in force", status)
				}
				bc := w.bind(tc.pod...)
				next, err := w.preFlight(bc)
				assert.Equal(t, tc.next, next, tc.reason)
				assert.Equal(t, tc.live, w.server.Reads(), tc.reason)
				if tc.refused != "" {
					require.EqualError(t, err, tc.refused, tc.reason)
					assert.InDelta(t, 1, w.results("a", "enforce", policy.Rejected), 0, "a decision that is repeated with live objects counts once")
				} else {
					require.NoError(t, err, tc.reason)
				}
				assert.Equal(t, tc.annotations, bc.CompleteAnnotations()[Name], tc.reason)
				assert.Equal(t, tc.labels, bc.Labels()[Name], tc.reason)
				if name == "Ignored" {
					require.Len(t, bc.Warnings(), 1)
					assert.Contains(t, bc.Warnings()[0], "skipped because an expression failed")
				} else {
					assert.Equal(t, tc.findings, bc.Findings(), tc.reason)
					assert.Equal(t, tc.warnings, bc.Warnings(), tc.reason)
				}
				assert.Equal(t, tc.event, w.event(), tc.reason)
				waits := ""
				for _, expected := range bc.ExpectedWaits() {
					waits += expected.For
				}
				assert.Equal(t, tc.waits, waits, tc.reason)
			})
		})
	}
}

func TestPreFlight_DryRunReportsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, policyOf(t, "a", rejectAll+"\nmode: Audit"), policyOf(t, "b", onCSINode))
		bc := w.bind()
		bc.DryRun = true
		next, err := w.preFlight(bc)
		require.NoError(t, err)
		assert.Equal(t, framework.Run, next)
		assert.Equal(t, []string{"policy would wait for driver: driver csi is missing"}, bc.Intents())
		assert.Empty(t, w.event())
		assert.Zero(t, w.results("a", "audit", policy.Rejected))
		assert.Zero(t, w.results("b", "enforce", policy.Waiting))
	})
}

func TestPreFlight_SameKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const spec = `mutations: {annotations: [{key: example.com/a, valueExpression: "'%'"}]}`
		w := prepareWorld(t, policyOf(t, "a", spec), policyOf(t, "b", spec))
		w.args.KeyPrefixes = []string{"example.com"}
		w.begin()
		bc := w.bind()
		_, err := w.preFlight(bc)
		require.NoError(t, err)
		assert.Equal(t, []string{"policy: BindPolicy b: replaces the annotation example.com/a of BindPolicy a"}, bc.Warnings())
	})
}

func TestPreFlight_FailedRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, policyOf(t, "a", onCSINode))
		bc := w.bind()
		w.h.Cached = w.api
		w.api.Before = func(c fakeapi.Call) error {
			if c.Kind == "CSINodeList" {
				return errors.New("no route to host")
			}
			return nil
		}
		_, err := w.preFlight(bc)
		require.ErrorContains(t, err, "no route to host")
		assert.True(t, framework.IsKind(err, framework.KindInternal), "a failed read does not count as a rejection")
		assert.Zero(t, w.results("a", "enforce", policy.Failed))
	})
}

func TestPreBind_WaitsForObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, policyOf(t, "a", onCSINode+`mutations: {annotations: [{key: done, valueExpression: "'yes'"}]}`))
		bc := w.bind()
		_, err := w.preFlight(bc)
		require.NoError(t, err)
		assert.InDelta(t, 1, w.results("a", "enforce", policy.Waiting), 0)
		running := w.start(bc)
		w.server.Put(withDriver("other"))
		ended, err := running.Ended()
		require.False(t, ended, "%v", err)
		w.server.Put(withDriver("csi"))
		ended, err = running.Ended()
		require.True(t, ended, "the change of the object wakes the bind")
		require.NoError(t, err)
		assert.Equal(t, "yes", bc.CompleteAnnotations()[Name]["a.policy.prebind.dev/done"])
		assert.InDelta(t, 1, w.results("a", "enforce", policy.Waiting), 0, "repeated looks do not count")
		assert.InDelta(t, 1, w.results("a", "enforce", policy.Allowed), 0)
	})
}

func TestPreBind_TimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, policyOf(t, "a", onCSINode))
		running := w.start(w.bind())
		elapse(2*time.Minute - time.Second)
		ended, err := running.Ended()
		require.False(t, ended, "%v", err)
		elapse(time.Second)
		ended, err = running.Ended()
		require.True(t, ended)
		assert.True(t, framework.IsKind(err, framework.KindRefuse), "%v", err)
		assert.ErrorContains(t, err, "see spec.waitFor[driver] of the policy")
		assert.InDelta(t, 1, w.results("a", "enforce", policy.TimedOut), 0)
	})
}

func TestPreBind_TimesOutWithAllow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, policyOf(t, "a", `waitFor: [{name: never, expression: "false", timeout: 10s, onTimeout: Allow}]`))
		bc := w.bind()
		running := w.start(bc)
		elapse(10 * time.Second)
		ended, err := running.Ended()
		require.True(t, ended)
		require.NoError(t, err)
		assert.Equal(t, []string{"policy: BindPolicy a: the wait never timed out, and onTimeout allows the bind"}, bc.Warnings())
		assert.InDelta(t, 1, w.results("a", "enforce", resultWaived), 0)
	})
}

// The timeout of a wait can end between two calls. The next call does not wait again, but a rejected bind does.
func TestPreBind_AllowLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, policyOf(t, "a", `waitFor: [{name: never, expression: "false", timeout: 10s, onTimeout: Allow}]`))
		preFlight := func() framework.Next {
			bc := w.bind()
			require.NoError(t, w.SetupBindContextExtension(t.Context(), w.h.Cached, bc))
			next, err := w.PreFlight(bc)
			require.NoError(t, err)
			return next
		}
		assert.Equal(t, framework.Run, preFlight())
		running := w.start(w.bind())
		elapse(10 * time.Second)
		ended, err := running.Ended()
		require.True(t, ended)
		require.NoError(t, err)
		elapse(2 * time.Minute)
		assert.Equal(t, framework.Skip, preFlight(), "the next call of the client")
		w.put(policyOf(t, "b", `waitFor: [{name: never, expression: "false", timeout: 1m}]`))
		assert.Equal(t, framework.Run, preFlight(), "another wait begins now")
		w.server.Remove(policyOf(t, "b", allowAll))
		synctest.Wait()
		assert.Equal(t, framework.Skip, preFlight())
		elapse(waivedFor)
		assert.Equal(t, framework.Run, preFlight(), "a later bind")
	})
}

func TestPreBind_PolicyChanges(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(w *world)
		want   string
	}{
		"Deleted":  {reason: "a deleted policy releases the binds that wait for it", change: func(w *world) { w.server.Remove(policyOf(w.t, "a", onCSINode)) }},
		"Replaced": {reason: "a bind is judged by the new set", change: func(w *world) { w.put(next(w.t, policyOf(w.t, "a", onCSINode), allowAll)) }},
		"Rejects":  {reason: "a bind is judged by the new set", change: func(w *world) { w.put(policyOf(w.t, "b", rejectAll)) }, want: "BindPolicy b: no"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, policyOf(t, "a", onCSINode))
				running := w.start(w.bind())
				tc.change(w)
				ended, err := running.Ended()
				require.True(t, ended, tc.reason)
				if tc.want == "" {
					require.NoError(t, err, tc.reason)
				} else {
					require.ErrorContains(t, err, tc.want, tc.reason)
				}
			})
		})
	}
}

func TestPreBind_StatusDoesNotWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := policyOf(t, "a", `waitFor: [{name: never, expression: "false"}]`)
		w := newWorld(t, b)
		woken := w.h.Changes.Subscribe(inForceChanged)
		defer woken.Close()
		isWoken := func() bool {
			select {
			case <-woken.C():
				return true
			default:
				return false
			}
		}
		w.put(next(t, b, broken))
		assert.False(t, isWoken(), "a generation that is not in force wakes no bind, and neither does its status")
		w.put(policyOf(t, "b", allowAll))
		assert.True(t, isWoken(), "another set wakes the binds")
	})
}

func TestConfirm(t *testing.T) {
	const notCordoned = `validations: [{expression: "!has(node.spec.unschedulable) || !node.spec.unschedulable", message: "the node is cordoned"}]`
	cases := map[string]struct {
		reason string
		spec   string
		want   string
	}{
		"Rejects": {reason: "the node changed during another PreBind", spec: notCordoned, want: "BindPolicy a: after the bind was prepared: the node is cordoned; choose another node, or see spec.validations[0] of the policy"},
		"Audit":   {reason: "mode Audit only reports", spec: notCordoned + "\nmode: Audit"},
		"Wait":    {reason: "a bind that was prepared does not wait again", spec: `waitFor: [{name: never, expression: "false"}]`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, policyOf(t, "a", tc.spec))
				bc := w.bind()
				require.NoError(t, w.Confirm(t.Context(), w.h.Cached, bc))
				fakeapi.Change(w.server, bc.Node, "kubectl", func(n *corev1.Node) { n.Spec.Unschedulable = true })
				err := w.Confirm(t.Context(), w.h.Cached, bc)
				if tc.want == "" {
					require.NoError(t, err, tc.reason)
				} else {
					require.EqualError(t, err, tc.want, tc.reason)
				}
			})
		})
	}
}

func TestLook_WithoutPoliciesCostsNothing(t *testing.T) {
	p := newPlugin(framework.Handle{}, &Arguments{}, newMetrics())
	bc := plugintest.Bind(gen.Pod("web"), gen.Node("node-a"))
	// A nil reader shows that nothing is read.
	assert.LessOrEqual(t, testing.AllocsPerRun(100, func() {
		if _, err := p.look(t.Context(), nil, bc); err != nil {
			t.Error(err)
		}
	}), 1.0)
}
