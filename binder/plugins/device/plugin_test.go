// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/ledger"
	"github.com/prebind/prebind/test/gen"
)

func TestNew(t *testing.T) {
	p, err := New(framework.Handle{}, &Arguments{NodeLockTimeout: timeout})
	require.NoError(t, err)
	assert.Equal(t, "device", p.Name())
	assert.Equal(t, framework.ByBindingOrPod, p.RequestedBy())
	_, err = New(framework.Handle{}, &Arguments{})
	assert.ErrorContains(t, err, "nodeLockTimeout")
	for _, by := range Caches(namespace) {
		assert.Equal(t, "app.kubernetes.io/component=prebind-device-record", by.Namespaces[namespace].LabelSelector.String())
	}
}

// TestGrant is one bind from its call to the end of its pod.
func TestGrant(t *testing.T) {
	web := podNamed("web")
	s := newServer(t, web)
	p := replicaOf(s)
	bc := bindOf(web, "a", gen.Annotation(gpu, "GPU-1,GPU-2:0.5"))

	next, err := preFlight(t.Context(), p, bc)
	require.NoError(t, err)
	assert.Equal(t, framework.Run, next)
	assert.Equal(t, []framework.Device{{Request: "gpu", Name: "GPU-1"}, {Request: "gpu", Name: "GPU-2", Share: "0.5"}}, bc.Devices())
	assert.Equal(t, []string{"device would grant GPU-1 (gpu), 0.5 of GPU-2 (gpu) of Node node-a to the pod"}, bc.Intents())
	assert.Zero(t, s.count(), "PreFlight writes nothing")

	require.NoError(t, p.PreBind(t.Context(), bc))
	require.NoError(t, p.PreBind(t.Context(), bc), "it is idempotent")
	require.NoError(t, confirm(t.Context(), p, bc))
	assert.Equal(t, 1, s.count())
	assert.Equal(t, map[string]string{"web": "[a: GPU-1 (gpu), 0.5 of GPU-2 (gpu)]"}, held(s))
	object := s.object("node-a")
	assert.Equal(t, map[string]string{ledger.Label: recordValue, "app.kubernetes.io/managed-by": "prebind"}, object.Labels)
	marks, err := p.Marks(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []framework.Mark{{Pod: types.NamespacedName{Namespace: "default", Name: "web"}, PodUID: "web", Node: "node-a", Attempt: "a"}}, marks)

	next, err = preFlight(t.Context(), p, bindOf(web, "a", gen.Annotation(gpu, "GPU-1,GPU-2:0.5")))
	require.NoError(t, err)
	assert.Equal(t, framework.Skip, next, "the same bind again has nothing to do")

	s.bind(bc)
	p.PostBind(t.Context(), bc)
	p.PostBind(t.Context(), bc)
	assert.Equal(t, map[string]string{"web": "[a: GPU-1 (gpu), 0.5 of GPU-2 (gpu)] bound"}, held(s))
	marks, err = p.Marks(t.Context())
	require.NoError(t, err)
	assert.Empty(t, marks)
	require.NoError(t, p.PreBindRollBack(t.Context(), bc))
	assert.Len(t, held(s), 1, "it is the pod's now")

	require.NoError(t, p.Tidy(t.Context()))
	assert.Len(t, held(s), 1, "the pod runs")
	s.finish(web)
	require.NoError(t, p.Tidy(t.Context()))
	assert.Empty(t, held(s))
	require.NoError(t, p.Tidy(t.Context()))
	assert.Nil(t, s.record("node-a"), "a record that holds nothing is deleted")
}

func TestAskedByPod(t *testing.T) {
	web := podNamed("web", gen.Annotation(gpu, "GPU-1"), gen.Annotation(fpga, "F"))
	s := newServer(t, web)
	bc := bindOf(web, "a", gen.Annotation(gpu, "GPU-2"))
	require.NoError(t, prepare(t.Context(), replicaOf(s), bc))
	assert.Equal(t, map[string]string{"web": "[a: F (fpga), GPU-2 (gpu)]"}, held(s), "the Binding's value of a key wins")
	assert.Equal(t, map[string]map[string]string{"device": {"fpga": "F"}}, bc.Annotations(), "the bound pod says what was granted, whatever it is edited to meanwhile")
}

// TestNothingAsked: as when the plugin is only required by its name.
func TestNothingAsked(t *testing.T) {
	web := podNamed("web", gen.Annotation(lockIt, "false"))
	s := newServer(t, web)
	p := replicaOf(s, withLocks)
	bc := bindOf(web, "a")
	next, err := preFlight(t.Context(), p, bc)
	require.NoError(t, err)
	assert.Equal(t, framework.Skip, next)
	require.NoError(t, p.PreBind(t.Context(), bc))
	require.NoError(t, confirm(t.Context(), p, bc))
	require.NoError(t, p.PreBindRollBack(t.Context(), bc))
	p.PostBind(t.Context(), bc)
	require.NoError(t, p.Tidy(t.Context()))
	assert.Zero(t, s.count())
}

func TestBadAnnotations(t *testing.T) {
	web := podNamed("web", gen.Annotation(fpga, "0000:3b:00.0"))
	s := newServer(t, web)
	p := replicaOf(s)
	bc := bindOf(web, "a", gen.Annotation(gpu, "GPU-1:2"))
	_, preFlight := preFlight(t.Context(), p, bc)
	for name, err := range map[string]error{"PreFlight": preFlight, "PreBind": p.PreBind(t.Context(), bc), "Confirm": confirm(t.Context(), p, bc)} {
		assert.True(t, framework.IsKind(err, framework.KindInvalid), name)
		assert.ErrorContains(t, err, gpu)
		assert.ErrorContains(t, err, fpga)
	}
	assert.Zero(t, s.count())
}

// TestHolders: what another pod holds is refused, by name, as long as it is there.
func TestHolders(t *testing.T) {
	cases := map[string]struct {
		reason string
		// then is what becomes of the holder's bind.
		then func(s *server, p *Plugin, holder *framework.BindContext)
		want string
	}{
		"UnderWay": {reason: "it is about to be bound", want: "device GPU-1 (gpu) is held by pod default/holder (bind in progress)"},
		"BoundNotConfirmed": {
			reason: "PostBind comes later, if at all", want: "is held by pod default/holder",
			then: func(s *server, _ *Plugin, bc *framework.BindContext) { s.bind(bc) },
		},
		"Bound": {
			reason: "it is there", want: "is held by pod default/holder",
			then: func(s *server, p *Plugin, bc *framework.BindContext) { s.bind(bc); p.PostBind(s.t.Context(), bc) },
		},
		"Ending": {
			reason: "its containers may still run", want: "is held by pod default/holder",
			then: func(s *server, p *Plugin, bc *framework.BindContext) {
				s.change(bc.Pod, func(pod *corev1.Pod) { pod.Finalizers = []string{"test.prebind.dev/kept"} })
				s.bind(bc)
				p.PostBind(s.t.Context(), bc)
				s.delete(bc.Pod)
			},
		},
		"RolledBack": {
			reason: "it gave them back",
			then: func(s *server, p *Plugin, bc *framework.BindContext) {
				require.NoError(s.t, p.PreBindRollBack(s.t.Context(), bc))
			},
		},
		"Finished": {
			reason: "it never runs again",
			then: func(s *server, p *Plugin, bc *framework.BindContext) {
				s.bind(bc)
				p.PostBind(s.t.Context(), bc)
				s.finish(bc.Pod)
			},
		},
		"Deleted": {reason: "it is gone", then: func(s *server, _ *Plugin, bc *framework.BindContext) { s.delete(bc.Pod) }},
		"DeletedAfterBound": {reason: "it is gone", then: func(s *server, p *Plugin, bc *framework.BindContext) {
			s.bind(bc)
			p.PostBind(s.t.Context(), bc)
			s.delete(bc.Pod)
		}},
		"BoundElsewhere": {reason: "it never comes here", then: func(s *server, _ *Plugin, bc *framework.BindContext) {
			s.change(bc.Pod, func(pod *corev1.Pod) { pod.Spec.NodeName = "node-b" })
		}},
		"CreatedAnew":        {reason: "the new pod has nothing yet", then: recreate},
		"CreatedAnewAndHere": {reason: "the new pod has nothing by its name", then: func(s *server, p *Plugin, bc *framework.BindContext) { recreate(s, p, bc); s.bind(bc) }},
	}
	for name, tc := range cases {
		for _, behind := range []string{"", "Behind"} {
			t.Run(name+behind, func(t *testing.T) {
				holder, me := podNamed("holder"), podNamed("me")
				s := newServer(t, holder, me)
				one, two := replicaOf(s), replicaOf(s)
				if behind != "" {
					// The other replica's cache never holds anything.
					cached := newLagging(s)
					two = pluginOn(s, cached, &line{server: s}, cached.hub)
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
				assert.True(t, framework.IsKind(err, framework.KindRefuse), "%v", err)
				assert.ErrorContains(t, err, tc.want, tc.reason)
				assert.ErrorContains(t, err, "Node node-a")
				assert.Equal(t, writes, s.count(), "nothing is written")
			})
		}
	}
}

func recreate(s *server, _ *Plugin, bc *framework.BindContext) {
	s.delete(bc.Pod)
	require.NoError(s.t, s.Create(s.t.Context(), podNamed(bc.Pod.Name, gen.UID("new"))))
}

// TestShares: as many as there are.
func TestShares(t *testing.T) {
	s := newServer(t)
	p := replicaOf(s)
	for _, name := range []string{"a", "b", "c"} {
		require.NoError(t, s.Create(t.Context(), podNamed(name)))
	}
	require.NoError(t, prepare(t.Context(), p, bindOf(podNamed("a"), "1", gen.Annotation(gpu, "GPU-1:0.5"))))
	require.NoError(t, prepare(t.Context(), p, bindOf(podNamed("b"), "2", gen.Annotation(gpu, "GPU-1:0.3"))))
	err := prepare(t.Context(), p, bindOf(podNamed("c"), "3", gen.Annotation(gpu, "GPU-1:0.3")))
	assert.ErrorContains(t, err, "pod default/a (0.5, bind in progress) and pod default/b (0.3, bind in progress): requested 0.3, free 0.2")
	require.NoError(t, prepare(t.Context(), p, bindOf(podNamed("c"), "3", gen.Annotation(gpu, "GPU-1:0.2"))))
}

// TestAllOrNothing: of two devices, one is taken.
func TestAllOrNothing(t *testing.T) {
	s := newServer(t, podNamed("a"), podNamed("b"))
	p := replicaOf(s)
	require.NoError(t, prepare(t.Context(), p, bindOf(podNamed("a"), "1", gen.Annotation(gpu, "GPU-1"))))
	require.Error(t, prepare(t.Context(), p, bindOf(podNamed("b"), "2", gen.Annotation(gpu, "GPU-1,GPU-2"))))
	assert.Len(t, held(s), 1)
}

// TestTwoAttempts: two replicas are at the bind of one pod.
func TestTwoAttempts(t *testing.T) {
	cases := map[string]struct {
		reason string
		then   func(t *testing.T, s *server, one, two *Plugin, a, b *framework.BindContext)
		want   map[string]string
	}{
		"OneRolledBack": {
			reason: "the other's grant stands", want: map[string]string{"web": "[b: GPU-1 (gpu)]"},
			then: func(t *testing.T, _ *server, one, _ *Plugin, a, _ *framework.BindContext) {
				require.NoError(t, one.PreBindRollBack(t.Context(), a))
				assert.Equal(t, []string{"released its devices"}, a.Undone())
			},
		},
		"RolledBackByOther": {
			reason: "as the sweep does for a replica that is gone", want: map[string]string{"web": "[b: GPU-1 (gpu)]"},
			then: func(t *testing.T, _ *server, _, two *Plugin, a, _ *framework.BindContext) {
				require.NoError(t, two.PreBindRollBack(t.Context(), recovered(a)))
				require.NoError(t, two.PreBindRollBack(t.Context(), recovered(a)), "it is idempotent")
			},
		},
		"BothRolledBack": {
			reason: "nothing is left", want: map[string]string{},
			then: func(t *testing.T, _ *server, one, two *Plugin, a, b *framework.BindContext) {
				require.NoError(t, one.PreBindRollBack(t.Context(), a))
				require.NoError(t, two.PreBindRollBack(t.Context(), b))
			},
		},
		"BoundByOne": {
			reason: "that one counts, whoever confirms", want: map[string]string{"web": "[b: GPU-1 (gpu)] bound"},
			then: func(t *testing.T, s *server, one, two *Plugin, a, b *framework.BindContext) {
				s.bind(b)
				one.PostBind(t.Context(), a)
				two.PostBind(t.Context(), recovered(b))
			},
		},
		"BoundAndLateRollBack": {
			reason: "the sweep is not asked about it any more", want: map[string]string{"web": "[b: GPU-1 (gpu)] bound"},
			then: func(t *testing.T, s *server, one, two *Plugin, a, b *framework.BindContext) {
				s.bind(b)
				two.PostBind(t.Context(), b)
				require.NoError(t, one.PreBindRollBack(t.Context(), a))
				require.NoError(t, two.PreBindRollBack(t.Context(), b))
			},
		},
		"Gone": {
			reason: "whoever hears of it first takes all back", want: map[string]string{},
			then: func(t *testing.T, s *server, one, _ *Plugin, a, _ *framework.BindContext) {
				s.bind(a)
				s.delete(a.Pod)
				one.PostBind(t.Context(), a)
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			web := podNamed("web")
			s := newServer(t, web)
			one, two := replicaOf(s), replicaOf(s)
			a, b := bindOf(web, "a", gen.Annotation(gpu, "GPU-1")), bindOf(web, "b", gen.Annotation(gpu, "GPU-1"))
			require.NoError(t, prepare(t.Context(), one, a))
			require.NoError(t, prepare(t.Context(), two, b))
			tc.then(t, s, one, two, a, b)
			assert.Equal(t, tc.want, held(s), tc.reason)
		})
	}
}

// recovered is the context of a bind of which only the mark is left.
func recovered(bc *framework.BindContext) *framework.BindContext {
	pod := gen.Pod(bc.Pod.Name, gen.UID(bc.Pod.UID))
	return &framework.BindContext{Pod: pod, Node: gen.Node(bc.Node.Name), Binding: gen.Binding(pod, bc.Node.Name), Attempt: bc.Attempt, Recovered: true}
}

// TestOtherDevicesInALaterRound: the scheduler has changed its mind. Until the bind
// has come about, either may.
func TestOtherDevicesInALaterRound(t *testing.T) {
	web := podNamed("web")
	s := newServer(t, web, podNamed("other"))
	p := replicaOf(s)
	first, second := bindOf(web, "a", gen.Annotation(gpu, "GPU-1")), bindOf(web, "a", gen.Annotation(gpu, "GPU-2"))
	require.NoError(t, prepare(t.Context(), p, first))
	require.NoError(t, prepare(t.Context(), p, second))
	assert.Equal(t, map[string]string{"web": "[a: GPU-1 (gpu)][a: GPU-2 (gpu)]"}, held(s))
	err := prepare(t.Context(), p, bindOf(podNamed("other"), "b", gen.Annotation(gpu, "GPU-1")))
	assert.True(t, framework.IsKind(err, framework.KindRefuse))

	s.bind(second)
	p.PostBind(t.Context(), first)
	assert.Equal(t, map[string]string{"web": "[a: GPU-2 (gpu)] bound"}, held(s), "those that it was bound with")
	require.NoError(t, prepare(t.Context(), p, bindOf(podNamed("other"), "b", gen.Annotation(gpu, "GPU-1"))))
}

// TestLateAttempt: a replica is still at a bind that has come about. What it would
// add would be the pod's for as long as it runs.
func TestLateAttempt(t *testing.T) {
	web := podNamed("web")
	s := newServer(t, web)
	p := replicaOf(s)
	bc := bindOf(web, "a", gen.Annotation(gpu, "GPU-1"))
	require.NoError(t, prepare(t.Context(), p, bc))
	s.bind(bc)
	p.PostBind(t.Context(), bc)
	cached := newLagging(s)
	late := pluginOn(s, cached, &line{server: s}, cached.hub)
	err := prepare(t.Context(), late, bindOf(web, "b", gen.Annotation(gpu, "GPU-2")))
	assert.True(t, framework.IsKind(err, framework.KindStale), "%v", err)
	assert.Equal(t, map[string]string{"web": "[a: GPU-1 (gpu)] bound"}, held(s))
}

// TestPreFlightAsksTheServer: a replica that was cut off goes by an old cache.
func TestPreFlightAsksTheServer(t *testing.T) {
	web, other := podNamed("web"), podNamed("other")
	s := newServer(t, web, other)
	cached := newLagging(s)
	cutOff, swept := pluginOn(s, cached, &line{server: s}, cached.hub), replicaOf(s)
	bc := bindOf(web, "a", gen.Annotation(gpu, "GPU-1"))
	require.NoError(t, prepare(t.Context(), cutOff, bc))
	require.NoError(t, cached.sync(t.Context()))
	require.NoError(t, swept.PreBindRollBack(t.Context(), recovered(bc)))
	require.NoError(t, prepare(t.Context(), swept, bindOf(other, "b", gen.Annotation(gpu, "GPU-1"))))

	err := confirm(t.Context(), cutOff, bc)
	assert.True(t, framework.IsKind(err, framework.KindWait), "%v", err)
	_, err = preFlight(t.Context(), cutOff, bc)
	assert.True(t, framework.IsKind(err, framework.KindRefuse), "a repeated call must not be let pass: %v", err)
	_, err = preFlight(t.Context(), cutOff, bindOf(web, "c", gen.Annotation(gpu, "GPU-2")))
	assert.NoError(t, err)
}

var errDown = apierrors.NewServiceUnavailable("down")

// TestServerFails: at each call, before or after it has had its effect. The client
// is told to call again, and a roll-back takes back what was done.
func TestServerFails(t *testing.T) {
	for _, tc := range []struct{ lost, first bool }{{false, true}, {true, true}, {false, false}, {true, false}} {
		for failing := range 6 {
			web := podNamed("web")
			s := newServer(t, web)
			cached := newLagging(s)
			if !tc.first {
				before := bindOf(podNamed("before"), "x", gen.Annotation(gpu, "GPU-9"))
				require.NoError(t, prepare(t.Context(), replicaOf(s), before))
				require.NoError(t, cached.sync(t.Context()))
			}
			calls := 0
			fail := func(string, any) error {
				if calls++; calls == failing+1 {
					return errDown
				}
				return nil
			}
			l := &line{server: s}
			if tc.lost {
				l.after = fail
			} else {
				l.before = fail
			}
			p := pluginOn(s, cached, l, cached.hub)
			bc := bindOf(web, "a", gen.Annotation(gpu, "GPU-1"), gen.Annotation(lockIt, "true"))
			err := prepare(t.Context(), p, bc)
			if err != nil {
				assert.True(t, framework.IsKind(err, framework.KindWait), "call %d: %v", failing, err)
				assert.ErrorIs(t, err, errDown)
			}
			for range 2 {
				if err := p.PreBindRollBack(t.Context(), bc); err == nil {
					break
				}
			}
			assert.NotContains(t, held(s), "web", "call %d, %+v", failing, tc)
			if rec := s.record("node-a"); rec != nil {
				assert.Nil(t, rec.Lock)
			}
		}
	}
}

// TestLostRecord: it is made up from the pods that run on the node.
func TestLostRecord(t *testing.T) {
	running := podNamed("running", gen.BoundTo("node-a"), gen.Annotation(gpu, "GPU-1:0.7"), gen.Annotation("binder.prebind.dev/attempt", "x"))
	ended := phased(corev1.PodSucceeded)
	gen.Annotation(gpu, "GPU-2")(&ended.ObjectMeta)
	objects := []client.Object{
		running, ended, podNamed("me"),
		podNamed("elsewhere", gen.BoundTo("node-b"), gen.Annotation(gpu, "GPU-2")),
		podNamed("pending", gen.Annotation(gpu, "GPU-2")),
		podNamed("none", gen.BoundTo("node-a")),
		podNamed("locker", gen.BoundTo("node-a"), gen.Annotation(lockIt, "true")),
		podNamed("long", gen.BoundTo("node-a"), gen.Annotation(fpga, "F"), gen.Annotation("binder.prebind.dev/attempt", string(make([]byte, 1<<16)))),
	}
	s := newServer(t, objects...)
	p := replicaOf(s)
	_, err := preFlight(t.Context(), p, bindOf(podNamed("me"), "b", gen.Annotation(gpu, "GPU-1")))
	require.NoError(t, err, "PreFlight asks the cache first")
	err = p.PreBind(t.Context(), bindOf(podNamed("me"), "b", gen.Annotation(gpu, "GPU-1")))
	assert.ErrorContains(t, err, "is held by pod default/running (0.7): requested 1, free 0.3")
	require.NoError(t, prepare(t.Context(), p, bindOf(podNamed("me"), "b", gen.Annotation(gpu, "GPU-1:0.3,GPU-2"))))
	assert.Equal(t, map[string]string{
		"running": "[x: 0.7 of GPU-1 (gpu)] bound", "long": "[: F (fpga)] bound", "me": "[b: 0.3 of GPU-1 (gpu), GPU-2 (gpu)]",
	}, held(s))
	assert.Less(t, len(s.object("node-a").Data["long"]), 1000, "what is no attempt does not come into the record")
}

// A tenant can add annotations to a running pod. If the record is then lost, the pod blocks
// the devices that it names, but it takes none from their holders.
func TestLostRecord_ForgedAnnotationsFreeNothing(t *testing.T) {
	s := newServer(t, podNamed("me"),
		podNamed("holder", gen.BoundTo("node-a"), gen.Annotation(gpu, "GPU-1")),
		podNamed("forger", gen.BoundTo("node-a"), gen.Annotation(gpu, "GPU-1,GPU-2")))
	p := replicaOf(s)
	err := prepare(t.Context(), p, bindOf(podNamed("me"), "b", gen.Annotation(gpu, "GPU-1")))
	require.ErrorContains(t, err, "pod default/holder")
	err = prepare(t.Context(), p, bindOf(podNamed("me"), "b", gen.Annotation(gpu, "GPU-2")))
	require.ErrorContains(t, err, "pod default/forger")
	s.delete(podNamed("forger"))
	require.NoError(t, prepare(t.Context(), p, bindOf(podNamed("me"), "b", gen.Annotation(gpu, "GPU-2"))))
	require.Error(t, prepare(t.Context(), p, bindOf(podNamed("me"), "b", gen.Annotation(gpu, "GPU-1"))))
}

// TestRecordLostWhileBinding: the last look sees it; a bind that was allowed before
// holds its devices again when it is confirmed.
func TestRecordLostWhileBinding(t *testing.T) {
	web, other := podNamed("web"), podNamed("other")
	s := newServer(t, web, other)
	p := replicaOf(s)
	bc := bindOf(web, "a", gen.Annotation(gpu, "GPU-1"))
	require.NoError(t, prepare(t.Context(), p, bc))
	require.NoError(t, s.Delete(t.Context(), s.object("node-a")))
	err := confirm(t.Context(), p, bc)
	assert.True(t, framework.IsKind(err, framework.KindWait), "%v", err)
	assert.ErrorContains(t, err, "ConfigMap prebind-system/prebind-devices-node-a")
	next, err := preFlight(t.Context(), p, bc)
	require.NoError(t, err)
	assert.Equal(t, framework.Run, next, "the repeated call is granted them again")

	require.NoError(t, prepare(t.Context(), p, bindOf(other, "b", gen.Annotation(gpu, "GPU-2"))))
	s.bind(bc)
	p.PostBind(t.Context(), bc)
	assert.Equal(t, map[string]string{"web": "[a: GPU-1 (gpu)] bound", "other": "[b: GPU-2 (gpu)]"}, held(s))
}

// TestUnreadableRecord: nothing is granted, nothing is written, and nothing is
// forgotten; another node is not concerned.
func TestUnreadableRecord(t *testing.T) {
	web := podNamed("web")
	bad := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: recordName("node-a"), Labels: map[string]string{ledger.Label: recordValue}},
		Data:       map[string]string{nodeField: "node-a", "p": "GPU-1"},
	}
	s := newServer(t, web, bad)
	p := replicaOf(s)
	bc := bindOf(web, "a", gen.Annotation(gpu, "GPU-1"))
	elsewhere := bindOf(web, "b", gen.Annotation(gpu, "GPU-1"))
	elsewhere.Node = gen.Node("node-b")
	require.NoError(t, prepare(t.Context(), p, elsewhere))
	writes := s.count()

	_, preFlight := preFlight(t.Context(), p, bc)
	marks, marksErr := p.Marks(t.Context())
	assert.Len(t, marks, 1, "the others are listed all the same")
	for name, err := range map[string]error{
		"PreFlight": preFlight, "PreBind": p.PreBind(t.Context(), bc), "Confirm": confirm(t.Context(), p, bc),
		"PreBindRollBack": p.PreBindRollBack(t.Context(), bc), "Marks": marksErr, "Tidy": p.Tidy(t.Context()),
	} {
		assert.ErrorContains(t, err, `"p"`, name)
		assert.ErrorContains(t, err, "prebind-devices-node-a")
	}
	assert.Equal(t, writes, s.count())
}

// TestPodIsNotSeenBound: PostBind writes nothing by a read that is behind.
func TestPodIsNotSeenBound(t *testing.T) {
	web := podNamed("web")
	s := newServer(t, web)
	p := replicaOf(s)
	bc := bindOf(web, "a", gen.Annotation(gpu, "GPU-1"), gen.Annotation(lockIt, "true"))
	require.NoError(t, prepare(t.Context(), p, bc))
	p.PostBind(t.Context(), bc)
	assert.Equal(t, map[string]string{"web": "[a: GPU-1 (gpu)]"}, held(s), "the mark stays")
	assert.NotNil(t, s.record("node-a").Lock)
}

// TestTidyKeepsWhatIsNotOver: grants of attempts are the sweep's.
func TestTidyKeepsWhatIsNotOver(t *testing.T) {
	gone, web := podNamed("gone"), podNamed("web")
	s := newServer(t, gone, web)
	p := replicaOf(s)
	require.NoError(t, prepare(t.Context(), p, bindOf(gone, "a", gen.Annotation(gpu, "GPU-1"))))
	require.NoError(t, prepare(t.Context(), p, bindOf(web, "b", gen.Annotation(gpu, "GPU-2"))))
	s.delete(gone)
	require.NoError(t, p.Tidy(t.Context()))
	assert.Len(t, held(s), 2)
	ctx, cancel := context.WithCancelCause(t.Context())
	errEnough := errors.New("enough")
	cancel(errEnough)
	assert.ErrorIs(t, p.Tidy(ctx), errEnough)
}

// TestTidyDeletesOnlyWhatIsEmpty: the cache says that it is, the API server knows
// better.
func TestTidyDeletesOnlyWhatIsEmpty(t *testing.T) {
	web := podNamed("web")
	s := newServer(t, web)
	cached := newLagging(s)
	p := pluginOn(s, cached, &line{server: s}, cached.hub)
	bc := bindOf(web, "a", gen.Annotation(gpu, "GPU-1"))
	require.NoError(t, prepare(t.Context(), p, bc))
	require.NoError(t, p.PreBindRollBack(t.Context(), bc))
	require.NoError(t, cached.sync(t.Context()))
	require.NoError(t, prepare(t.Context(), replicaOf(s), bc))
	require.NoError(t, p.Tidy(t.Context()))
	assert.Len(t, held(s), 1)
}
