// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
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

// markOf is a mark for thePod on node-a.
func markOf(attempt string) framework.Mark {
	return framework.Mark{
		Pod:    types.NamespacedName{Namespace: thePod.Namespace, Name: thePod.Name},
		PodUID: thePod.UID, Node: "node-a", Attempt: attempt,
	}
}

func TestDecide(t *testing.T) {
	pod := func(options ...gen.PodOption) *corev1.Pod {
		return gen.Pod(thePod.Name, append([]gen.PodOption{gen.UID(thePod.UID)}, options...)...)
	}
	tests := map[string]struct {
		reason string
		pod    *corev1.Pod
		lives  bool
		known  time.Duration
		want   verdict
	}{
		"Lives":               {reason: "it follows its binds by itself", pod: pod(), lives: true, known: time.Hour, want: verdictKeep},
		"LivesAndGone":        {reason: "it will see that and undo it", lives: true, known: time.Hour, want: verdictKeep},
		"Gone":                {reason: "nobody will ever use it", want: verdictRollBack},
		"Recreated":           {reason: "the pod of that name is another", pod: gen.Pod(thePod.Name, gen.UID("other"), gen.BoundTo("node-a")), want: verdictRollBack},
		"Bound":               {reason: "it is in use", pod: pod(gen.BoundTo("node-a")), want: verdictCommit},
		"BoundAndTerminating": {reason: "it is in use until the pod is gone", pod: pod(gen.BoundTo("node-a"), gen.Terminating()), want: verdictCommit},
		"BoundElsewhere":      {reason: "the node was not the one", pod: pod(gen.BoundTo("node-b")), want: verdictRollBack},
		"Terminating":         {reason: "it will not be bound", pod: pod(gen.Terminating()), want: verdictRollBack},
		"Pending":             {reason: "a call may come to another replica", pod: pod(), known: SweepGrace, want: verdictKeep},
		"PendingTooLong":      {reason: "none came", pod: pod(), known: SweepGrace + 1, want: verdictRollBack},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, decide(markOf("gone-1"), tc.pod, tc.lives, tc.known), tc.reason)
		})
	}
}

// marker is a plugin with marks.
type marker struct {
	*writer
	marks []framework.Mark
	err   error
}

func (m *marker) Marks(context.Context) ([]framework.Mark, error) { return m.marks, m.err }

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
				p := &tidier{marker: &marker{writer: newWriter("p", calls), err: tc.err}, calls: calls, err: tc.err}
				s := newScene(t, p)
				ctx, cancel := context.WithTimeout(quiet(t), tc.took)
				defer cancel()
				NewSweeper(s.Engine, tc.living).Run(ctx)
				assert.Len(t, calls.all(), tc.want, tc.reason)
			})
		})
	}
}

type livingReplicas map[string]bool

func (livingReplicas) Observe(ctx context.Context) { <-ctx.Done() }

func (l livingReplicas) Living(context.Context) (map[string]bool, error) {
	copied := map[string]bool{}
	for id := range l {
		copied[id] = true
	}
	return copied, nil
}

// sweeping runs a sweeper for the time, with the plugin's calls written down.
func sweeping(t *testing.T, m *marker, living Replicas, pod *corev1.Pod, d time.Duration) {
	s := newScene(t, m)
	s.podIs(pod)
	ctx, cancel := context.WithTimeout(quiet(t), d)
	defer cancel()
	NewSweeper(s.Engine, living).Run(ctx)
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
		"Pending":          {reason: "time for a call to another replica", pod: thePod, marks: []framework.Mark{markOf("b-1")}, took: SweepGrace},
		"PendingTooLong":   {reason: "no call came", pod: thePod, marks: []framework.Mark{markOf("b-1")}, took: SweepGrace + sweepEvery + time.Second, want: "p PreBindRollBack"},
		"OthersWithError":  {reason: "what could be listed is settled", marks: []framework.Mark{markOf("b-1")}, err: errScripted, took: time.Second, want: "p PreBindRollBack"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := &journal{}
				m := &marker{writer: newWriter("p", calls), marks: tc.marks, err: tc.err}
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
		m := &marker{writer: newWriter("p", &journal{}), marks: []framework.Mark{markOf("b-1")}}
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
		m := &marker{writer: newWriter("p", calls), marks: []framework.Mark{markOf("b-1")}}
		tries := 0
		m.rollBack = func(context.Context, *framework.BindContext) error {
			if tries++; tries == 1 {
				return errScripted
			}
			calls.add("undone")
			m.marks = nil
			return nil
		}
		s := newScene(t, m)
		s.podIs(nil)
		s.live.fail(errors.New("connection refused"))
		ctx, cancel := context.WithCancel(quiet(t))
		done := make(chan struct{})
		go func() {
			defer close(done)
			NewSweeper(s.Engine, livingReplicas{}).Run(ctx)
		}()
		pass(time.Minute)
		assert.Zero(t, tries)
		s.live.fail(nil)
		pass(time.Minute)
		cancel()
		<-done
		assert.Equal(t, 2, tries)
		assert.Equal(t, []string{"undone"}, calls.all())
	})
}
