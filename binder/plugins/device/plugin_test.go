// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/internal/ledger"
	"github.com/prebind/prebind/test/gen"
)

func TestArguments(t *testing.T) {
	for timeout, valid := range map[time.Duration]bool{0: false, 99 * time.Second: false, 100 * time.Second: true} {
		err := (&Arguments{NodeLockTimeout: metav1.Duration{Duration: timeout}}).Validate(nil).ToAggregate()
		assert.Equal(t, valid, err == nil, "an allowed bind can be executed 50 s later: %s: %v", timeout, err)
	}
}

// A grant, from the bind to the end of its pod.
func TestGrant_FollowsThePod(t *testing.T) {
	web := podNamed("web")
	s := newServer(t, web)
	p := replicaOf(s)
	bc := bindOf(web, "a", gen.Annotation(gpu, "GPU-1,GPU-2:0.5"))

	verdict, err := preFlight(t.Context(), p, bc)
	require.NoError(t, err)
	assert.Equal(t, framework.Verdict{
		Annotations: map[string]string{},
		Devices:     []framework.Device{{Request: "gpu", Name: "GPU-1"}, {Request: "gpu", Name: "GPU-2", Share: "0.5"}},
		Writes:      []string{"grant GPU-1 (gpu), 0.5 of GPU-2 (gpu) of Node node-a to the pod"},
	}, verdict)
	assert.Zero(t, s.count(), "PreFlight writes nothing")

	require.NoError(t, p.PreBind(t.Context(), bc))
	require.NoError(t, p.PreBind(t.Context(), bc), "PreBind is idempotent")
	require.NoError(t, confirm(t.Context(), p, bc))
	assert.Equal(t, 1, s.count())
	assert.Equal(t, map[string]string{"web": "[a: GPU-1 (gpu), 0.5 of GPU-2 (gpu)]"}, held(s))
	object := s.object()
	assert.Equal(t, map[string]string{ledger.Label: component, "app.kubernetes.io/managed-by": "prebind"}, object.Labels)
	marks, err := p.Marks(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []framework.Mark{{Pod: types.NamespacedName{Namespace: "default", Name: "web"}, PodUID: "web", Node: "node-a", Attempt: "a"}}, marks)

	require.NoError(t, confirm(t.Context(), p, bindOf(web, "a", gen.Annotation(gpu, "GPU-1,GPU-2:0.5"))), "a repeated call is already prepared")

	s.bindAndConfirm(p, bc)
	require.NoError(t, s.postBind(p, bc))
	assert.Equal(t, map[string]string{"web": "[a: GPU-1 (gpu), 0.5 of GPU-2 (gpu)] bound"}, held(s))
	marks, err = p.Marks(t.Context())
	require.NoError(t, err)
	assert.Empty(t, marks)
	require.NoError(t, p.PreBindRollBack(t.Context(), bc.Mark()))
	assert.Len(t, held(s), 1, "the grant belongs to the bound pod")

	require.NoError(t, p.Tidy(t.Context()))
	assert.Len(t, held(s), 1, "the pod is running")
	s.finish(web)
	require.NoError(t, p.Tidy(t.Context()))
	assert.Empty(t, held(s))
	require.NoError(t, p.Tidy(t.Context()))
	assert.Nil(t, s.record(), "Tidy deletes an empty record")
}

func TestGrant_MergesPodAndBinding(t *testing.T) {
	web := podNamed("web", gen.Annotation(gpu, "GPU-1"), gen.Annotation(fpga, "F"))
	s := newServer(t, web)
	bc := bindOf(web, "a", gen.Annotation(gpu, "GPU-2"))
	p := replicaOf(s)
	require.NoError(t, prepare(t.Context(), p, bc))
	assert.Equal(t, map[string]string{"web": "[a: F (fpga), GPU-2 (gpu)]"}, held(s), "the value of the Binding takes precedence")
	verdict, err := preFlight(t.Context(), p, bc)
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"fpga": "F"}, verdict.Annotations, "the bound pod lists its grant even if its annotations are edited during the bind")
}

// The Bindings of one pod cannot fill the record of the node.
func TestGrant_Limit(t *testing.T) {
	web := podNamed("web")
	s := newServer(t, web)
	p := replicaOf(s)
	for i := range maxGrants {
		require.NoError(t, p.PreBind(t.Context(), bindOf(web, "a", gen.Annotation(gpu, fmt.Sprint("GPU-", i)))))
	}
	require.NoError(t, p.PreBind(t.Context(), bindOf(web, "a", gen.Annotation(gpu, "GPU-0"))), "it has these devices")
	err := p.PreBind(t.Context(), bindOf(web, "a", gen.Annotation(gpu, "GPU-x")))
	assert.True(t, frameworktest.IsKind(err, framework.KindRefuse), "%v", err)
}

func TestConflict_EndsWithTheHolder(t *testing.T) {
	cases := map[string]struct {
		reason string
		// then ends or continues the bind of the holder.
		then func(s *server, p *Plugin, holder *framework.BindContext)
		want string
	}{
		"InProgress": {reason: "the bind can still succeed", want: "device GPU-1 (gpu) is held by pod default/holder (bind in progress)"},
		"Ending": {
			reason: "the containers of a terminating pod may still run", want: "is held by pod default/holder",
			then: func(s *server, p *Plugin, bc *framework.BindContext) {
				s.change(bc.Pod, func(pod *corev1.Pod) { pod.Finalizers = []string{"test.prebind.dev/kept"} })
				s.bindAndConfirm(p, bc)
				s.delete(bc.Pod)
			},
		},
		"Finished": {
			reason: "a finished pod uses no devices",
			then: func(s *server, p *Plugin, bc *framework.BindContext) {
				s.bindAndConfirm(p, bc)
				s.finish(bc.Pod)
			},
		},
		"Deleted": {reason: "the pod is gone", then: func(s *server, _ *Plugin, bc *framework.BindContext) { s.delete(bc.Pod) }},
		"BoundElsewhere": {reason: "the pod runs on another node", then: func(s *server, _ *Plugin, bc *framework.BindContext) {
			s.change(bc.Pod, func(pod *corev1.Pod) { pod.Spec.NodeName = "node-b" })
		}},
		"Recreated": {reason: "the new pod has no grant", then: func(s *server, _ *Plugin, bc *framework.BindContext) {
			s.delete(bc.Pod)
			require.NoError(s.t, s.Create(s.t.Context(), podNamed(bc.Pod.Name, gen.UID("new"))))
		}},
	}
	for name, tc := range cases {
		for _, behind := range []string{"", "Behind"} {
			t.Run(name+behind, func(t *testing.T) {
				holder, me := podNamed("holder"), podNamed("me")
				s := newServer(t, holder, me)
				one, two := replicaOf(s), replicaOf(s)
				if behind != "" {
					// The cache of the other replica is always empty.
					cached := newLagging(s)
					two = pluginOn(s, cached, s.api.Connect(), cached.hub)
				}
				theirs := bindOf(holder, "a", gen.Annotation(gpu, "GPU-1"))
				require.NoError(t, prepare(t.Context(), one, theirs))
				if tc.then != nil {
					tc.then(s, one, theirs)
				}
				writes := s.count()
				err := prepare(t.Context(), two, bindOf(me, "b", gen.Annotation(gpu, "GPU-1")))
				if tc.want == "" {
					require.NoError(t, err, tc.reason)
					assert.Equal(t, map[string]string{"me": "[b: GPU-1 (gpu)]"}, held(s))
					return
				}
				assert.True(t, frameworktest.IsKind(err, framework.KindRefuse), "%v", err)
				assert.ErrorContains(t, err, tc.want, tc.reason)
				assert.ErrorContains(t, err, "Node node-a")
				assert.Equal(t, writes, s.count(), "PreFlight writes nothing")
			})
		}
	}
}

// A replica still works on a bind that has succeeded. A grant that it adds would belong to
// the pod as long as the pod runs.
func TestLateAttempt_AddsNothingToABoundPod(t *testing.T) {
	s, p, bc := granted(t)
	s.bindAndConfirm(p, bc)
	cached := newLagging(s)
	late := pluginOn(s, cached, s.api.Connect(), cached.hub)
	err := prepare(t.Context(), late, bindOf(bc.Pod, "b", gen.Annotation(gpu, "GPU-2")))
	assert.True(t, frameworktest.IsKind(err, framework.KindStale), "%v", err)
	assert.Equal(t, map[string]string{"web": "[a: GPU-1 (gpu)] bound"}, held(s))
}

// The sweep, not Tidy, ends grants of attempts.
func TestTidy_KeepsGrantsInUse(t *testing.T) {
	gone, web := podNamed("gone"), podNamed("web")
	s := newServer(t, gone, web)
	p := replicaOf(s)
	require.NoError(t, prepare(t.Context(), p, bindOf(gone, "a", gen.Annotation(gpu, "GPU-1"))))
	require.NoError(t, prepare(t.Context(), p, bindOf(web, "b", gen.Annotation(gpu, "GPU-2"))))
	s.delete(gone)
	require.NoError(t, p.Tidy(t.Context()))
	assert.Len(t, held(s), 2)
}

// A replica in mode Audit, for example that of an earlier rollout, allows binds without a grant.
func TestTidy_AddsPodsBoundWithoutAGrant(t *testing.T) {
	first, audited, third := podNamed("first"), podNamed("audited"), podNamed("third")
	s := newServer(t, first, audited, third)
	p := replicaOf(s)
	a := bindOf(first, "1", gen.Annotation(gpu, "GPU-1"))
	require.NoError(t, prepare(t.Context(), p, a))
	s.bindAndConfirm(p, a)
	s.bind(bindOf(audited, "", gen.Annotation(gpu, "GPU-2")))
	require.NoError(t, p.Tidy(t.Context()))
	err := prepare(t.Context(), p, bindOf(third, "3", gen.Annotation(gpu, "GPU-2")))
	assert.ErrorContains(t, err, "GPU-2 (gpu) is held by pod default/audited")
	assert.Len(t, held(s), 2)
}

// The record in the cache is empty, and the record in the API server is not.
func TestTidy_DeletesOnlyEmptyRecords(t *testing.T) {
	web := podNamed("web")
	s := newServer(t, web)
	cached := newLagging(s)
	p := pluginOn(s, cached, s.api.Connect(), cached.hub)
	bc := bindOf(web, "a", gen.Annotation(gpu, "GPU-1"))
	require.NoError(t, prepare(t.Context(), p, bc))
	require.NoError(t, p.PreBindRollBack(t.Context(), bc.Mark()))
	cached.sync()
	require.NoError(t, prepare(t.Context(), replicaOf(s), bc))
	require.NoError(t, p.Tidy(t.Context()))
	assert.Len(t, held(s), 1)
}

// A dry run, an explanation and an audit decide like PreBind.
func TestPreFlight_DryRun(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		// change is what happens to the pod that holds the device.
		change func(s *server, holder *corev1.Pod)
		says   string
	}{
		"Gone":    {reason: "the record still has the pod", change: func(s *server, holder *corev1.Pod) { s.delete(holder) }},
		"Running": {reason: "the pod uses the device", change: func(*server, *corev1.Pod) {}, says: "is held by pod default/first"},
	} {
		t.Run(name, func(t *testing.T) {
			first, second := podNamed("first"), podNamed("second")
			s := newServer(t, first, second)
			p := replicaOf(s)
			a, b := bindOf(first, "1", gen.Annotation(gpu, "GPU-1")), bindOf(second, "2", gen.Annotation(gpu, "GPU-1"))
			require.NoError(t, prepare(t.Context(), p, a))
			s.bindAndConfirm(p, a)
			tc.change(s, first)
			b.DryRun = true
			_, err := preFlight(t.Context(), p, b)
			if tc.says == "" {
				require.NoError(t, err, tc.reason)
				return
			}
			assert.ErrorContains(t, err, tc.says, tc.reason)
		})
	}
	s := newServer(t, podNamed("running", gen.BoundTo("node-a"), gen.Annotation(gpu, "GPU-1")), podNamed("me"))
	b := bindOf(podNamed("me"), "2", gen.Annotation(gpu, "GPU-1"))
	b.DryRun = true
	_, err := preFlight(t.Context(), replicaOf(s), b)
	assert.ErrorContains(t, err, "is held by pod default/running", "the node has no record")
}
