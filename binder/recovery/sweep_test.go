// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

func TestActionFor(t *testing.T) {
	pod := func(options ...gen.PodOption) *corev1.Pod {
		return gen.Pod(thePod.Name, append([]gen.PodOption{gen.UID(thePod.UID)}, options...)...)
	}
	tests := map[string]struct {
		reason string
		pod    *corev1.Pod
		lives  bool
		known  time.Duration
		want   action
	}{
		"Lives":               {reason: "it follows its binds by itself", pod: pod(), lives: true, known: time.Hour, want: actionKeep},
		"LivesAndGone":        {reason: "it will see that and undo it", lives: true, known: time.Hour, want: actionKeep},
		"Gone":                {reason: "nobody will ever use it", want: actionRollBack},
		"Recreated":           {reason: "the pod of that name is another", pod: gen.Pod(thePod.Name, gen.UID("other"), gen.BoundTo("node-a")), want: actionRollBack},
		"Bound":               {reason: "it is in use", pod: pod(gen.BoundTo("node-a")), want: actionCommit},
		"BoundAndTerminating": {reason: "it is in use until the pod is gone", pod: pod(gen.BoundTo("node-a"), gen.Terminating()), want: actionCommit},
		"BoundElsewhere":      {reason: "the node was not the one", pod: pod(gen.BoundTo("node-b")), want: actionRollBack},
		"Terminating":         {reason: "it will not be bound", pod: pod(gen.Terminating()), want: actionRollBack},
		"Pending":             {reason: "a call may come to another replica", pod: pod(), known: Grace, want: actionKeep},
		"PendingTooLong":      {reason: "none came", pod: pod(), known: Grace + 1, want: actionRollBack},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, actionFor(markOf("gone-1"), tc.pod, tc.lives, tc.known), tc.reason)
		})
	}
}

// tidier is a marker that is asked to tidy.
type tidier struct {
	*marker
	calls *journal
	err   error
}

func (p *tidier) Tidy(context.Context) error {
	p.calls.add("tidy")
	return p.err
}

// TestTidy: plugins are asked to tidy now and then, whatever the sweep met with,
// and by one replica only.
func TestTidy(t *testing.T) {
	tests := map[string]struct {
		reason string
		living Replicas
		took   time.Duration
		err    error
		want   int
	}{
		"AtOnce":     {reason: "a new leader does not know when it was last", living: livingReplicas{}, took: time.Second, want: 1},
		"NotOften":   {reason: "it reads from the API server", living: livingReplicas{}, took: tidyEvery - time.Second, want: 1},
		"Again":      {reason: "pods go all the time", living: livingReplicas{}, took: tidyEvery + sweepEvery, want: 2},
		"AfterError": {reason: "the next time may succeed", living: livingReplicas{}, took: tidyEvery + sweepEvery, err: errScripted, want: 2},
		"OwnSweep":   {reason: "one replica does it for all", took: time.Hour},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := &journal{}
				p := &tidier{marker: &marker{writer: newWriter(calls), err: tc.err}, calls: calls, err: tc.err}
				s := newScene(p)
				ctx, cancel := context.WithTimeout(quiet(t), tc.took)
				defer cancel()
				s.sweeper(tc.living).Run(ctx)
				assert.Len(t, calls.all(), tc.want, tc.reason)
			})
		})
	}
}

// sweeping runs a sweeper for the time, with the plugin's calls written down.
func sweeping(t *testing.T, m *marker, living Replicas, pod *corev1.Pod, d time.Duration) {
	s := newScene(m)
	s.podIs(pod)
	ctx, cancel := context.WithTimeout(quiet(t), d)
	defer cancel()
	s.sweeper(living).Run(ctx)
}

func TestSweep(t *testing.T) {
	bound := gen.Pod(thePod.Name, gen.UID(thePod.UID), gen.BoundTo("node-a"))
	tests := map[string]struct {
		reason string
		pod    *corev1.Pod
		living livingReplicas
		marks  []framework.Mark
		err    error
		took   time.Duration
		want   string
	}{
		"OfALivingReplica": {reason: "its own business", living: livingReplicas{"b": true}, marks: []framework.Mark{markOf("b-1")}, took: time.Hour},
		"OfThisReplica":    {reason: "whether the lease was seen yet or not", marks: []framework.Mark{markOf("here-1")}, took: time.Hour},
		"Gone":             {reason: "the pod will never use it", marks: []framework.Mark{markOf("b-1")}, took: time.Second, want: "p PreBindRollBack"},
		"Bound":            {reason: "the write is in use", pod: bound, marks: []framework.Mark{markOf("b-1")}, took: time.Second, want: "p PostBind"},
		"Pending":          {reason: "time for a call to another replica", pod: thePod, marks: []framework.Mark{markOf("b-1")}, took: Grace},
		"PendingTooLong":   {reason: "no call came", pod: thePod, marks: []framework.Mark{markOf("b-1")}, took: Grace + sweepEvery + time.Second, want: "p PreBindRollBack"},
		"OthersWithError":  {reason: "what could be listed is settled", marks: []framework.Mark{markOf("b-1")}, err: errScripted, took: time.Second, want: "p PreBindRollBack"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := &journal{}
				m := &marker{writer: newWriter(calls), marks: tc.marks, err: tc.err}
				sweeping(t, m, tc.living, tc.pod, tc.took)
				if tc.want == "" {
					assert.Empty(t, calls.all(), tc.reason)
					return
				}
				assert.Equal(t, []string{tc.want}, calls.all(), tc.reason)
			})
		})
	}
}

// A plugin learns from a recovered context all that the mark says, and no more.
func TestSweepRecoversTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got *framework.BindContext
		m := &marker{writer: newWriter(&journal{}), marks: []framework.Mark{markOf("b-1")}}
		m.rollBack = func(_ context.Context, bc *framework.BindContext) error {
			got = bc
			return nil
		}
		sweeping(t, m, livingReplicas{}, nil, time.Second)
		require.NotNil(t, got)
		assert.True(t, got.Recovered)
		assert.Equal(t, "b-1", got.Attempt)
		assert.Equal(t, thePod.UID, got.Pod.UID)
		assert.Equal(t, "node-a", got.Node.Name)
	})
}

// Nothing is decided while it is not known what became of the pod, and a
// roll-back that fails is repeated with the next sweep.
func TestSweepRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := &journal{}
		m := &marker{writer: newWriter(calls), marks: []framework.Mark{markOf("b-1")}}
		tries := 0
		m.rollBack = func(context.Context, *framework.BindContext) error {
			if tries++; tries == 1 {
				return errScripted
			}
			calls.add("undone")
			m.marks = nil
			return nil
		}
		s := newScene(m)
		s.podIs(nil)
		s.live.set(nil, errors.New("connection refused"))
		ctx, cancel := context.WithCancel(quiet(t))
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.sweeper(livingReplicas{}).Run(ctx)
		}()
		pass(time.Minute)
		assert.Zero(t, tries)
		s.live.set(nil, nil)
		pass(time.Minute)
		cancel()
		<-done
		assert.Equal(t, 2, tries)
		assert.Equal(t, []string{"undone"}, calls.all())
	})
}

// The grace begins when the replica of the mark ends, not when the mark is first seen.
func TestGraceCountsFromTheEndOfTheReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := &journal{}
		m := &marker{writer: newWriter(calls), marks: []framework.Mark{markOf("b-1")}}
		living := &switchable{ids: map[string]bool{"b": true}}
		s := newScene(m)
		s.podIs(thePod)
		ctx, cancel := context.WithCancel(quiet(t))
		done := make(chan struct{})
		go func() { defer close(done); s.sweeper(living).Run(ctx) }()
		pass(2 * time.Minute) // it waits for a volume, say; and then allows the bind, and ends
		living.mu.Lock()
		delete(living.ids, "b")
		living.mu.Unlock()
		pass(20 * time.Second)
		assert.Empty(t, calls.all(), "the API server may still be at the bind that was allowed, or the call be repeated elsewhere")
		cancel()
		<-done
	})
}

// A plugin whose Marks panics.
type panicking struct{ *writer }

func (panicking) Marks(context.Context) ([]framework.Mark, error) { panic("a bug in Marks") }

func TestMarksPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(panicking{newWriter(&journal{})})
		ctx, cancel := context.WithTimeout(quiet(t), time.Second)
		defer cancel()
		assert.NotPanics(t, func() { s.sweeper(livingReplicas{}).Run(ctx) })
	})
}

// stream has one mark at a time, and its list always fails.
type stream struct {
	*writer
	n int
}

func (m *stream) Marks(context.Context) ([]framework.Mark, error) {
	m.n++
	return []framework.Mark{{Pod: types.NamespacedName{Namespace: "default", Name: "p"}, PodUID: "u", Node: "n", Attempt: "here-" + strings.Repeat("x", m.n)}}, errors.New("one of the objects cannot be read")
}

func TestOrphansArePruned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(&stream{writer: newWriter(&journal{})})
		ctx, cancel := context.WithTimeout(quiet(t), time.Hour)
		defer cancel()
		sw := s.sweeper(livingReplicas{})
		sw.Run(ctx)
		assert.Less(t, len(sw.orphans), 10)
	})
}

func TestObserverOfSweeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &marker{writer: newWriter(&journal{}), marks: []framework.Mark{markOf("b-1")}}
		tries := 0
		m.rollBack = func(context.Context, *framework.BindContext) error {
			if tries++; tries == 1 {
				return errScripted
			}
			return nil
		}
		s := newScene(m)
		w := &watcher{}
		s.o.Observer = w
		s.podIs(nil)
		ctx, cancel := context.WithTimeout(quiet(t), sweepEvery+time.Second)
		defer cancel()
		s.sweeper(livingReplicas{}).Run(ctx)
		assert.Equal(t, []string{"swept: p roll back as the script says", "swept: p roll back <nil>"}, w.all())
	})
}
