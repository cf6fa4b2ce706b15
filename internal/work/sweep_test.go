// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package work

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

// tidier is a marker with a Tidy, which needs all of its time if it is slow.
type tidier struct {
	*marker
	slow bool
}

func (p *tidier) Tidy(ctx context.Context) error {
	if p.slow {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if ctx.Err() == nil {
		p.calls.add("tidy")
	}
	return p.err
}

// TestTidy_EveryTwoMinutes: one replica calls Tidy regularly, even if the sweep fails.
func TestTidy_EveryTwoMinutes(t *testing.T) {
	tests := map[string]struct {
		reason string
		living Peers
		took   time.Duration
		err    error
		want   int
	}{
		"AtOnce":     {reason: "a new leader calls Tidy at once", living: livingReplicas{}, took: time.Second, want: 1},
		"NotOften":   {reason: "Tidy reads from the API server, so calls are rare", living: livingReplicas{}, took: tidyEvery - time.Second, want: 1},
		"Again":      {reason: "Tidy is called again", living: livingReplicas{}, took: tidyEvery + sweepEvery, want: 2},
		"AfterError": {reason: "a failure is retried", living: livingReplicas{}, took: tidyEvery + sweepEvery, err: errScripted, want: 2},
		"Follower":   {reason: "only the leader calls Tidy", living: follower{}, took: time.Hour},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := &journal{}
				p := &tidier{marker: &marker{recordingWriter: newWriter(calls), err: tc.err}}
				s := newFixture(p, thePod)
				s.sweep(t, tc.living, tc.took)
				assert.Len(t, calls.all(), tc.want, tc.reason)
			})
		})
	}
}

// TestTidy_TimeOfEachPlugin: a slow plugin takes no time from the next one.
func TestTidy_TimeOfEachPlugin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := &journal{}
		next := &tidier{marker: &marker{recordingWriter: newWriter(calls)}}
		s := newFixture(next, thePod).sweeper(livingReplicas{})
		s.plugins = []framework.Plugin{&tidier{next.marker, true}, next}
		began := time.Now()
		assert.ErrorIs(t, s.tidy(t.Context()), context.DeadlineExceeded)
		assert.Equal(t, tidyTimeout, time.Since(began))
		assert.Equal(t, []string{"tidy"}, calls.all())
	})
}

func TestSweep_Settles(t *testing.T) {
	pod := func(options ...gen.PodOption) *corev1.Pod {
		return gen.Pod(thePod.Name, append([]gen.PodOption{gen.UID(thePod.UID)}, options...)...)
	}
	tests := map[string]struct {
		reason string
		pod    *corev1.Pod
		living Peers
		marks  []framework.Mark
		err    error
		took   time.Duration
		want   string
	}{
		"OfALivingReplica": {reason: "a live replica settles its own marks", living: livingReplicas{"b": true}, marks: []framework.Mark{markOf("b-1")}, took: time.Hour},
		"OfAnotherReplica": {reason: "the leader settles it", living: follower{}, marks: []framework.Mark{markOf("b-1")}, took: time.Hour},
		"OfThisReplica":    {reason: "the rollback of the attempt has failed", living: follower{}, marks: []framework.Mark{markOf("here-1")}, took: time.Second, want: "p PreBindRollBack"},
		"OfThisPending":    {reason: "its rollback has begun", pod: thePod, living: follower{}, marks: []framework.Mark{markOf("here-1")}, took: time.Second, want: "p PreBindRollBack"},
		"Gone":             {reason: "the pod does not use the writes", marks: []framework.Mark{markOf("b-1")}, took: time.Second, want: "p PreBindRollBack"},
		"Recreated":        {reason: "another pod has the name", pod: pod(gen.UID("other"), gen.BoundTo("node-a")), marks: []framework.Mark{markOf("b-1")}, took: time.Second, want: "p PreBindRollBack"},
		"Bound":            {reason: "the pod uses the writes", pod: pod(gen.BoundTo("node-a")), marks: []framework.Mark{markOf("b-1")}, took: time.Second, want: "p PostBind"},
		"BoundTerminating": {reason: "the pod uses the writes until it is gone", pod: pod(gen.BoundTo("node-a"), gen.Terminating()), marks: []framework.Mark{markOf("b-1")}, took: time.Second, want: "p PostBind"},
		"BoundElsewhere":   {reason: "the pod is on another node", pod: pod(gen.BoundTo("node-b")), marks: []framework.Mark{markOf("b-1")}, took: time.Second, want: "p PreBindRollBack"},
		"Terminating":      {reason: "a terminating pod will not be bound", pod: pod(gen.Terminating()), marks: []framework.Mark{markOf("b-1")}, took: time.Second, want: "p PreBindRollBack"},
		"Pending":          {reason: "a call may reach another replica", pod: thePod, marks: []framework.Mark{markOf("b-1")}, took: Grace},
		"PendingTooLong":   {reason: "no call arrived in time", pod: thePod, marks: []framework.Mark{markOf("b-1")}, took: Grace + sweepEvery + time.Second, want: "p PreBindRollBack"},
		"OthersWithError":  {reason: "listed marks are settled", marks: []framework.Mark{markOf("b-1")}, err: errScripted, took: time.Second, want: "p PreBindRollBack"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := &journal{}
				m := &marker{recordingWriter: newWriter(calls), marks: tc.marks, err: tc.err}
				if tc.living == nil {
					tc.living = livingReplicas{}
				}
				newFixture(m, tc.pod).sweep(t, tc.living, tc.took)
				if tc.want == "" {
					assert.Empty(t, calls.all(), tc.reason)
					return
				}
				assert.Equal(t, []string{tc.want}, calls.all(), tc.reason)
			})
		})
	}
}

// TestSweep_TimeOfEachPlugin: a plugin whose writes take long takes no time from the next one.
func TestSweep_TimeOfEachPlugin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := &journal{}
		slow := &marker{recordingWriter: newWriter(calls), marks: []framework.Mark{markOf("b-1"), markOf("b-2")}}
		slow.rollBack = func(ctx context.Context, _ framework.Mark) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		next := &marker{recordingWriter: newWriter(calls), marks: []framework.Mark{markOf("b-3")}}
		s := newFixture(next, nil).sweeper(livingReplicas{})
		s.plugins = []framework.Plugin{slow, next}
		assert.ErrorIs(t, s.sweep(quiet(t)), context.DeadlineExceeded)
		assert.Equal(t, []string{"p PreBindRollBack"}, calls.all())
	})
}

// TestSweep_AfterStop: another replica continues the work of a replica that is shutting down.
func TestSweep_AfterStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := &journal{}
		m := &marker{recordingWriter: newWriter(calls), marks: []framework.Mark{markOf("here-1")}}
		s := newFixture(m, thePod)
		w := s.sweeper(livingReplicas{})
		var e *Entry
		w.Set, e = s.writing(t, m)
		assert.NoError(t, w.Allow(e))
		w.Leave(e, false, 0)
		assert.NoError(t, w.Stop(t.Context()))
		assert.NoError(t, w.sweep(quiet(t)))
		assert.Empty(t, calls.all())
	})
}

// TestGrace_BeginsWithTheEndOfTheReplica: the grace does not begin when the mark is first listed.
func TestGrace_BeginsWithTheEndOfTheReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := &journal{}
		m := &marker{recordingWriter: newWriter(calls), marks: []framework.Mark{markOf("b-1")}}
		living := &ending{livingReplicas: livingReplicas{"b": true}}
		s := newFixture(m, thePod)
		ctx, cancel := context.WithCancel(quiet(t))
		done := make(chan struct{})
		go func() { defer close(done); s.sweeper(living).run(ctx) }()
		pass(2 * time.Minute) // the replica waits, allows the bind, and ends
		living.ended.Store(true)
		pass(20 * time.Second)
		assert.Empty(t, calls.all(), "the API server may still execute the bind, or another replica may receive the call")
		cancel()
		<-done
	})
}

// TestGrace_SlowRead: the state of a pod that the cache does not hold is as old as the beginning of its read.
func TestGrace_SlowRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := &journal{}
		s := newFixture(&marker{recordingWriter: newWriter(calls), marks: []framework.Mark{markOf("b-1")}}, thePod)
		s.o.Cached, s.o.Live = fakeapi.New().Cache(), slowReader{s.o.Live}
		s.sweep(t, livingReplicas{}, Grace+8*time.Second)
		assert.Empty(t, calls.all(), "the fourth read begins after 57 s and ends after 66 s")
		s.sweep(t, livingReplicas{}, Grace+30*time.Second)
		assert.Equal(t, []string{"p PreBindRollBack"}, calls.all())
	})
}

// slowReader takes almost readTimeout for each read.
type slowReader struct{ framework.Reader }

func (r slowReader) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	pass(readTimeout - time.Second)
	return r.Reader.Get(ctx, key, o, options...)
}

func TestMarks_Panics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFixture(&marker{recordingWriter: newWriter(&journal{}), list: func() ([]framework.Mark, error) { panic("a bug in Marks") }}, thePod)
		assert.NotPanics(t, func() { s.sweep(t, livingReplicas{}, time.Second) })
	})
}

// One mark is listed at a time, and listing always fails.
func TestOrphans_ArePruned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		s := newFixture(&marker{recordingWriter: newWriter(&journal{}), list: func() ([]framework.Mark, error) {
			n++
			return []framework.Mark{markOf("here-" + strings.Repeat("x", n))}, errors.New("one of the objects cannot be read")
		}}, nil)
		assert.Less(t, len(s.sweep(t, livingReplicas{}, time.Hour).orphans), 10)
	})
}

// The alert PrebindSweepFailing counts these failures.
func TestObserver_Fails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failures := []error{errScripted, errScripted}
		fails := func() (err error) {
			if len(failures) > 0 {
				err, failures = failures[0], failures[1:]
			}
			return err
		}
		m := &marker{recordingWriter: newWriter(&journal{}), list: func() ([]framework.Mark, error) { return []framework.Mark{markOf("b-1")}, fails() }}
		m.rollBack = func(context.Context, framework.Mark) error { return fails() }
		s, w := newFixture(m, nil), &watcher{}
		s.o.Recorder = w
		s.sweep(t, livingReplicas{}, sweepEvery+time.Second)
		assert.Equal(t, []string{"swept: p list as the script says", "swept: p roll back as the script says", "swept: p roll back <nil>"}, w.all())
	})
}

// tenantMarks returns n marks of ended replicas for deleted pods of the namespace.
func tenantMarks(namespace string, n int) []framework.Mark {
	marks := make([]framework.Mark, n)
	for i := range marks {
		name := fmt.Sprintf("pod-%d", i)
		marks[i] = framework.Mark{Pod: types.NamespacedName{Namespace: namespace, Name: name}, PodUID: types.UID(namespace + name), Node: "node-a", Attempt: "gone-" + name}
	}
	return marks
}

// TestSweep_TenantWithManyMarks: one tenant has thousands of marks whose rollbacks are slow or fail.
// The single mark of another tenant is settled in the first sweep, and every mark is tried.
func TestSweep_TenantWithManyMarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 2_000
		calls := map[string]int{}
		m := &marker{recordingWriter: newWriter(&journal{}), marks: slices.Concat(tenantMarks("hostile", many), tenantMarks("victim", 1))}
		began := time.Now()
		var settled time.Duration
		m.rollBack = func(_ context.Context, of framework.Mark) error {
			pass(50 * time.Millisecond)
			calls[of.Pod.Namespace+"/"+of.Pod.Name]++
			if of.Pod.Namespace == "victim" {
				settled = time.Since(began)
				m.marks = m.marks[:many]
				return nil
			}
			return errScripted
		}
		newFixture(m, nil).sweep(t, livingReplicas{}, 10*time.Minute)
		assert.Equal(t, 1, calls["victim/pod-0"])
		assert.Less(t, settled, sweepEvery, "the mark is settled in the first sweep")
		assert.Len(t, calls, many+1, "every mark was tried")
		for name, n := range calls {
			assert.LessOrEqual(t, n, 6, "%s was not tried more often than the others", name)
		}
	})
}
