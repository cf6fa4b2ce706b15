// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

const moment = 2 * time.Second

// fixture is the plugin with an API server, which has the pod web.
type fixture struct {
	t      *testing.T
	server *fakeapi.Server
	plugin *Plugin
	// applies is the number of writes of the plugin. before is called before each of them.
	applies int
	before  func() error
}

// restart replaces the plugin with that of another process.
func (s *fixture) restart() {
	api := s.server.Connect()
	api.Before = func(c fakeapi.Call) error {
		if !strings.HasSuffix(c.Verb, " status") {
			return nil
		}
		s.applies++
		return s.before()
	}
	s.plugin = newPlugin(framework.Handle{Cached: s.server.Cache(), Live: api, Status: api, Clock: clock.RealClock{}}, &Arguments{After: metav1.Duration{Duration: moment}})
}

// bind returns the context of an attempt to bind the pod.
func bind(attempt, node string) *framework.BindContext {
	pod := gen.Pod("web", gen.UID("pod-1"))
	return &framework.BindContext{Pod: pod, Node: gen.Node(node), Binding: gen.Binding(pod, node), Attempt: attempt}
}

// mark returns the mark of the attempt r1-a.
func mark() framework.Mark { return bind("r1-a", "node-a").Mark() }

// wait reports a wait, and waits until its announcement is due.
func (s *fixture) wait(bc *framework.BindContext) {
	s.t.Helper()
	s.plugin.BindWaits(s.t.Context(), bc, nil)
	s.pass(moment)
}

// pass lets the time pass.
func (s *fixture) pass(d time.Duration) {
	s.t.Helper()
	<-time.After(d)
	synctest.Wait()
}

func (s *fixture) pod() *corev1.Pod {
	s.t.Helper()
	pod, ok := fakeapi.Get(s.server, gen.Pod("web"))
	require.True(s.t, ok)
	return pod
}

func (s *fixture) assertNominated(node, reason string) {
	s.t.Helper()
	assert.Equal(s.t, node, s.pod().Status.NominatedNodeName, reason)
}

// nominate sets the field as another client.
func (s *fixture) nominate(node string) {
	s.t.Helper()
	pod := s.pod()
	pod.Status.NominatedNodeName = node
	require.NoError(s.t, s.server.Connect().Status().Update(s.t.Context(), pod, client.FieldOwner("kube-scheduler")))
}

// end reports the end of a bind, and waits until the plugin is done.
func (s *fixture) end(bc *framework.BindContext) {
	s.t.Helper()
	s.plugin.BindDecided(s.t.Context(), bc)
	synctest.Wait()
}

// rollBack withdraws the announcement of a mark.
func (s *fixture) rollBack(m framework.Mark) {
	s.t.Helper()
	require.NoError(s.t, s.plugin.PreBindRollBack(s.t.Context(), m))
}

// in runs the test with the fake clock of testing/synctest.
func in(t *testing.T, f func(t *testing.T, s *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &fixture{t: t, server: fakeapi.New(gen.Pod("web", gen.UID("pod-1"))), before: func() error { return nil }}
		s.restart()
		f(t, s)
		s.pass(forget)
		assert.Empty(t, s.plugin.running, "the plugin must forget the binds that have ended")
	})
}

func TestBindWaits_AnnouncesAfterAMoment(t *testing.T) {
	in(t, func(t *testing.T, s *fixture) {
		bc := bind("r1-a", "node-a")
		s.plugin.BindWaits(t.Context(), bc, nil)
		s.pass(moment - time.Nanosecond)
		s.assertNominated("", "the bind may still be fast")
		s.pass(time.Nanosecond)
		s.assertNominated("node-a", "the bind waits")
		s.wait(bind("r1-b", "node-a"))
		assert.Equal(t, 1, s.applies, "the field is set once, also for the next call")
		s.end(bc)
		s.assertNominated("", "the bind has ended")
		s.end(bc)
		assert.Equal(t, 2, s.applies, "the end is idempotent")
	})
}

func TestBindWaits_Pinned(t *testing.T) {
	in(t, func(t *testing.T, s *fixture) {
		bc := bind("r1-a", "node-a")
		bc.Binding.ResourceVersion = "7"
		s.wait(bc)
		assert.Zero(t, s.applies, "the API server would reject the Binding after a write to the pod")
	})
}

// An announcement lasts longer than the calls of the bind. A tenant can create large pods, so it does not keep them in memory.
func TestBindWaits_ReleasesThePod(t *testing.T) {
	in(t, func(t *testing.T, s *fixture) {
		pod := func() weak.Pointer[corev1.Pod] {
			bc := bind("r1-a", "node-a")
			s.plugin.BindWaits(t.Context(), bc, nil)
			return weak.Make(bc.Pod)
		}()
		runtime.GC()
		assert.Nil(t, pod.Value(), "the bind is not announced yet")
		s.pass(moment)
		s.assertNominated("node-a", "the bind waits")
	})
}

// The end of a fast bind costs no request.
func TestEnd_OfAFastBind(t *testing.T) {
	in(t, func(t *testing.T, s *fixture) {
		s.plugin.h.Live = nil // A read panics.
		bc := bind("r1-a", "node-a")
		s.plugin.BindWaits(t.Context(), bc, nil)
		s.pass(moment / 2)
		s.end(bc)
		s.pass(moment)
		assert.Zero(t, s.applies)
	})
}

// The plugin never changes a value that another client has set.
func TestPlugin_KeepsOtherValues(t *testing.T) {
	for name, tc := range map[string]struct {
		reason        string
		before, after string
		clears        bool
		want          string
	}{
		"Before": {reason: "the scheduler has nominated a node already", before: "node-b", want: "node-b"},
		"Same":   {reason: "the scheduler has nominated the same node", before: "node-a", want: "node-a"},
		"After":  {reason: "the scheduler preempts pods on another node", after: "node-b", want: "node-b"},
		"Clears": {reason: "the scheduler has cleared the field", clears: true},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(_ *testing.T, s *fixture) {
				bc := bind("r1-a", "node-a")
				if tc.before != "" {
					s.nominate(tc.before)
				}
				s.wait(bc)
				if tc.after != "" || tc.clears {
					s.assertNominated("node-a", "the bind waits")
					s.nominate(tc.after)
				}
				s.end(bc)
				s.assertNominated(tc.want, tc.reason)
			})
		})
	}
}

// A replica is killed, and another one continues the bind. The field goes with the last attempt.
func TestPlugin_ContinuesAfterACrash(t *testing.T) {
	in(t, func(t *testing.T, s *fixture) {
		s.wait(bind("r1-a", "node-a"))
		s.restart() // Another process.
		second := bind("r2-b", "node-a")
		s.wait(second)
		attempts, foreign := ownersOf(s.pod())
		assert.Equal(t, []string{"r1-a", "r2-b"}, attempts)
		assert.False(t, foreign)

		s.rollBack(mark())
		s.assertNominated("node-a", "the second attempt still waits")
		s.end(second)
		s.assertNominated("", "the second attempt has ended")
	})
	in(t, func(_ *testing.T, s *fixture) {
		s.wait(bind("r1-a", "node-a"))
		s.restart()
		other := bind("r2-b", "node-b")
		s.wait(other)
		s.assertNominated("node-b", "the scheduler has chosen another node")
		s.rollBack(mark())
		s.assertNominated("node-b", "the first attempt no longer owns the field")
		s.end(other)
		s.assertNominated("", "the second attempt has ended")
	})
}

// A user forges an entry of the attempt's manager. A write would remove the other fields of the entry.
func TestPlugin_KeepsFieldsOfForgedEntries(t *testing.T) {
	forge := func(s *fixture, fields string) {
		fakeapi.Change(s.server, gen.Pod("web"), "", func(pod *corev1.Pod) {
			pod.ManagedFields = nominatedPod("", managerOf("r1-a")).ManagedFields
			pod.ManagedFields[1].FieldsV1 = metav1.NewFieldsV1(fields)
		})
	}
	more := func(s *fixture) { forge(s, `{"f:status":{"f:nominatedNodeName":{},"f:phase":{}}}`) }
	for name, tc := range map[string]struct {
		reason                string
		before, after, racing func(s *fixture)
		writes                int
	}{
		"Before": {reason: "the announcement would remove the phase", before: func(s *fixture) { forge(s, `{"f:status":{"f:phase":{}}}`) }},
		"After":  {reason: "the rollback would remove the phase", after: more, writes: 1},
		"Racing": {reason: "the entry changes between the read and the write of the rollback", racing: more, writes: 1},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, s *fixture) {
				if tc.before != nil {
					tc.before(s)
				}
				bc := bind("r1-a", "node-a")
				s.wait(bc)
				if tc.after != nil {
					tc.after(s)
				}
				if tc.racing != nil {
					s.before = func() error { tc.racing(s); return nil }
				}
				s.end(bc)
				_ = s.plugin.PreBindRollBack(t.Context(), bc.Mark()) // It may give up after some conflicts.
				assert.Len(t, s.server.Writes(), tc.writes, tc.reason)
			})
		})
	}
}

// An error of the API server neither fails nor delays the bind.
func TestPlugin_ErrorsDoNotAffectTheBind(t *testing.T) {
	in(t, func(t *testing.T, s *fixture) {
		s.before = func() error {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "pods/status"}, "web", errors.New("no permission"))
		}
		first, second := bind("r1-a", "node-a"), bind("r1-b", "node-b")
		s.wait(first)
		s.wait(second)
		logged := 0
		s.plugin.logged.Range(func(any, any) bool { logged++; return true })
		assert.Equal(t, 1, logged, "each cause is logged once")
		s.end(second)
	})
	in(t, func(t *testing.T, s *fixture) {
		bc := bind("r1-a", "node-a")
		s.wait(bc)
		s.before = func() error { return apierrors.NewTooManyRequests("later", 1) }
		s.end(bc)
		require.Error(t, s.plugin.PreBindRollBack(t.Context(), mark()), "the sweeper retries")
		s.before = func() error { return nil }
		s.rollBack(mark())
		s.assertNominated("", "the sweeper clears the field")
	})
}

// Marks omits a running announcement: the sweeper of this replica would withdraw it.
func TestMarks(t *testing.T) {
	in(t, func(t *testing.T, s *fixture) {
		s.wait(bind("r1-a", "node-a"))
		marks, err := s.plugin.Marks(t.Context())
		require.NoError(t, err)
		assert.Empty(t, marks)
		s.restart()
		marks, err = s.plugin.Marks(t.Context())
		require.NoError(t, err)
		assert.Len(t, marks, 1)
	})
}
