// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/mutation"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

// TestSeats tests that users with and without exemption have seats of their own, and that all of them together leave connections free.
func TestSeats(t *testing.T) {
	s := seats{isExempt: func(u authenticationv1.UserInfo) bool { return u.Username == "exempt" }}
	count := func(user string) (taken int, leave func()) {
		for {
			next := s.take(authenticationv1.UserInfo{Username: user}, 3)
			if next == nil {
				return taken, leave
			}
			taken, leave = taken+1, next
		}
	}
	exempt, leaveExempt := count("exempt")
	others, leave := count("other")
	assert.Equal(t, maxExempt, exempt)
	assert.Equal(t, 3, others)
	held, most := s.count(3)
	assert.Equal(t, maxExempt+3, held)
	assert.Equal(t, maxExempt+3, most)

	leave()
	again, _ := count("exempt")
	assert.Zero(t, again, "the seat of another user is not theirs")
	leaveExempt()
	again, _ = count("exempt")
	assert.Equal(t, 1, again)
}

// TestSeats_MemoryOfANamespace: large pods and Bindings of one tenant take no memory from another one.
func TestSeats_MemoryOfANamespace(t *testing.T) {
	var s seats
	assert.True(t, s.grow("a", maxHeld-1))
	assert.False(t, s.grow("a", 2), "the limit of the namespace")
	assert.True(t, s.grow("b", 2), "another namespace has its own limit")
	s.grow("a", 1-maxHeld)
	s.grow("b", -2)
	assert.True(t, s.grow("a", maxHeld), "a call that ends gives its memory back")
	s.grow("a", -maxHeld)
	assert.Empty(t, s.size)
}

// TestBind_PassesOfANamespace: one change wakes all calls of a tenant, but few of their passes run at the same time.
func TestBind_PassesOfANamespace(t *testing.T) {
	var running, most atomic.Int32
	plugin := framework.NewPlugin("slow", func(_ context.Context, _ framework.Reader, _ *framework.BindContext) (framework.Verdict, error) {
		most.Store(max(most.Load(), running.Add(1)))
		defer running.Add(-1)
		pass(time.Second)
		return framework.Verdict{}, nil
	})
	in(t, func(o *Options) { o.Settings.Mutators = mutation.NewChain(nil, nil) }, func(t *testing.T, s *fixture) {
		began := time.Now()
		var calls sync.WaitGroup
		for range 3 * passesAtOnce {
			calls.Go(func() { assert.Nil(t, s.post(t.Context()).Err) })
		}
		calls.Wait()
		assert.EqualValues(t, passesAtOnce, most.Load())
		assert.Equal(t, 3*time.Second, time.Since(began))

		first, waited := s.turns.take(t.Context(), "a")
		second, again := s.turns.take(t.Context(), "a")
		assert.False(t, waited || again)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		third, waited := s.turns.take(ended, "a")
		assert.True(t, waited)
		third()
		first()
		second()
	}, plugin)
}

// late is a plugin that reserves something at its third try.
type late struct{ tries int }

func (*late) Name() string { return "late" }

func (*late) PreFlight(*framework.BindContext) (framework.Verdict, error) {
	return framework.Verdict{Late: true, Writes: []string{"reserve"}}, nil
}

func (p *late) Reserve(*framework.BindContext) bool {
	p.tries++
	return p.tries > 2
}

// TestReserve_TriesAgain: no change may follow after a reservation that failed.
func TestReserve_TriesAgain(t *testing.T) {
	in(t, nil, func(t *testing.T, s *fixture) {
		began := time.Now()
		assert.Nil(t, s.post(t.Context()).Err)
		assert.InDelta(t, readAgain, time.Since(began), float64(2*pace))
	}, &late{})
}

// TestRequest_Memory: empty items of the user and the Binding need memory, too.
func TestRequest_Memory(t *testing.T) {
	const items = 1000
	annotations, extra := map[string]string{}, map[string]authenticationv1.ExtraValue{"a": make([]string, items)}
	for i := range items {
		annotations[fmt.Sprint(i)] = ""
	}
	for _, r := range []Request{
		{Binding: &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Annotations: annotations}}},
		{Binding: &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Labels: annotations}}},
		{Binding: &corev1.Binding{}, User: authenticationv1.UserInfo{Groups: make([]string, items)}},
		{Binding: &corev1.Binding{}, User: authenticationv1.UserInfo{Extra: extra}},
	} {
		assert.Greater(t, r.memory(), item*items)
	}
}

// TestBind_PodGrows: a pod that becomes large while it waits counts for the memory of its namespace.
func TestBind_PodGrows(t *testing.T) {
	in(t, func(o *Options) { o.Cached = fakeapi.New().Cache() }, func(t *testing.T, s *fixture) { // The cache has no large pods.
		large := gen.Pod("web", gen.UID("pod-1"), gen.Label("large", strings.Repeat("x", maxHeld)))
		time.AfterFunc(5*time.Second, func() { s.server.Put(large) })
		began := time.Now()
		d := s.post(t.Context())
		require.NotNil(t, d.Err)
		assert.Equal(t, framework.KindWait, d.Err.Kind)
		assert.GreaterOrEqual(t, d.RetryAfter, minRetry)
		assert.LessOrEqual(t, time.Since(began), 6*time.Second, "the namespace has no memory left")
		held, _ := s.seats.count(0)
		assert.Zero(t, held)
		assert.Empty(t, s.seats.size)
	}, labelled())
}

// TestBind_RejectedLargePods: a call that is about to be rejected has no seat, but uses the memory of its namespace.
func TestBind_RejectedLargePods(t *testing.T) {
	in(t, func(o *Options) { o.Cached = fakeapi.New().Cache() }, func(t *testing.T, s *fixture) {
		s.server.Put(gen.Pod("web", gen.UID("pod-1"), gen.Label("large", strings.Repeat("x", maxHeld*2/3))))
		var kinds [2]framework.Kind
		var calls sync.WaitGroup
		for i := range kinds {
			calls.Go(func() { kinds[i] = s.post(t.Context()).Err.Kind })
		}
		calls.Wait()
		assert.ElementsMatch(t, []framework.Kind{framework.KindRefuse, framework.KindWait}, kinds[:])
		for s.seats.grow(s.pod.Namespace, maxHeld/2) {
		}
		var after time.Duration
		for range 5 {
			after = s.post(t.Context()).RetryAfter
			pass(after)
		}
		assert.Greater(t, after, minRetry+minRetry/2, "each repeated call reads the pod")
		s.seats.size = nil
	}, rejecting())
}

// TestBind_ReadyLargePod: a bind that waits for nothing needs none of the memory.
func TestBind_ReadyLargePod(t *testing.T) {
	in(t, func(o *Options) { o.Cached = fakeapi.New().Cache() }, func(t *testing.T, s *fixture) {
		s.seats.grow(s.pod.Namespace, maxHeld)
		assert.Nil(t, s.post(t.Context()).Err)
		assert.Equal(t, framework.KindWait, s.post(t.Context(), annotated("binder.prebind.dev/require", "unknown")).Err.Kind, "the engine's rejections count")
		s.seats.size = nil
	})
}
