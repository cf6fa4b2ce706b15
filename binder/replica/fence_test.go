// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/notify"
	"github.com/prebind/prebind/binder/work"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/unrecorded"
)

var (
	errCut  = errors.New("connection refused")
	thePod  = gen.Pod("web", gen.UID("pod-1"))
	theNode = gen.Node("node-a")
)

// grants are the writes of the plugins of all replicas: one grant for each pod, with its attempt.
type grants struct {
	mu         sync.Mutex
	byPod      map[types.UID]string
	rolledBack []time.Time
}

// grantor is the plugin of one replica. Its cache may lag behind the grants.
type grantor struct {
	*grants
	// busy makes the bind wait after the grant until it is closed.
	busy chan struct{}
	// stale makes PreFlight allow the bind without a grant.
	stale atomic.Bool
}

func (*grantor) Name() string { return "grantor" }

func (g *grantor) PreFlight(bc *framework.BindContext) (framework.Verdict, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stale.Load() {
		return framework.Verdict{}, nil
	}
	if g.byPod[bc.Pod.UID] != bc.Attempt {
		return framework.Verdict{Writes: []string{"grant"}}, nil
	}
	select {
	case <-g.busy:
		return framework.Verdict{}, nil
	default:
		return framework.Verdict{Wait: framework.Wait{For: "the grant", Until: bc.Now.Add(100 * time.Millisecond)}}, nil
	}
}

func (g *grantor) PreBind(_ context.Context, bc *framework.BindContext) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.byPod[bc.Pod.UID] = bc.Attempt
	return nil
}

func (*grantor) PostBind(context.Context, *framework.BindContext) error { return nil }

func (g *grantor) PreBindRollBack(_ context.Context, bc *framework.BindContext) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.byPod[bc.Pod.UID] == bc.Attempt {
		delete(g.byPod, bc.Pod.UID)
		g.rolledBack = append(g.rolledBack, time.Now())
	}
	return nil
}

func (g *grantor) Marks(context.Context) ([]framework.Mark, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var marks []framework.Mark
	for uid, attempt := range g.byPod {
		marks = append(marks, framework.Mark{Pod: client.ObjectKeyFromObject(thePod), PodUID: uid, Node: theNode.Name, Attempt: attempt})
	}
	return marks, nil
}

// silent is an event recorder that drops all events.
type silent struct{ events.EventRecorder }

func (silent) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {}

// party is one replica: its lease, its engine and its plugin.
type party struct {
	*Replicas
	*grantor
	engine *binder.Engine
	// cut keeps it from renewing its lease.
	cut atomic.Bool
}

func newParty(t *testing.T, id string, stored *fakeapi.Clientset, shared *grants) *party {
	t.Helper()
	p := &party{grantor: &grantor{grants: shared, busy: make(chan struct{})}}
	p.Replicas = newReplicas(t, cuttable(stored, &p.cut), id)
	chain, err := mutators.NewChain(mutators.Options{})
	require.NoError(t, err)
	cluster := fakeapi.New(thePod, theNode)
	p.engine, err = binder.New(binder.Options{
		Cached: cluster.Connect(), Live: cluster.Connect(), Replica: id, Term: p.Term,
		Changes: notify.NewHub(), Events: silent{}, Recorder: unrecorded.Recorder{}, Clock: clock.RealClock{},
		Settings: binder.Settings{
			Mode: binder.ModeEnforce, Mutators: chain, Plugins: []framework.Plugin{p.grantor}, Hold: 5 * time.Second, MaxHolds: 8,
			PreBindTimeout: 10 * time.Minute, MaxPreBindTimeout: 10 * time.Minute,
		},
	})
	require.NoError(t, err)
	go func() { _ = p.Start(quiet(t)) }()
	t.Cleanup(func() { assert.NoError(t, p.engine.Stop(context.WithoutCancel(t.Context()))) })
	synctest.Wait()
	return p
}

// cuttable is a client whose writes fail while cut is set.
func cuttable(stored *fakeapi.Clientset, cut *atomic.Bool) kubernetes.Interface {
	c := &fake.Clientset{}
	c.AddReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if cut.Load() && a.GetVerb() != "list" {
			return true, nil, errCut
		}
		o, err := stored.Invokes(a, nil)
		return true, o, err
	})
	return c
}

func (p *party) bind(t *testing.T) *framework.Error {
	t.Helper()
	b := gen.Binding(thePod, theNode.Name, gen.UID(thePod.UID))
	return p.engine.Bind(quiet(t), binder.Request{Pod: client.ObjectKeyFromObject(thePod), Binding: b}).Err
}

func pass(d time.Duration) { <-time.After(d) }

// TestFence_NothingIsRolledBackUnderABind: a replica cannot renew its lease, and another one rolls
// back its writes. At that time no allowed bind may still be open.
func TestFence_NothingIsRolledBackUnderABind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := &grants{byPod: map[types.UID]string{}}
		stored := fakeapi.NewClientset()
		cut, other := newParty(t, "cut", stored, shared), newParty(t, "other", stored, shared)
		go other.engine.Sweep(quiet(t), other)
		require.Equal(t, framework.KindWait, cut.bind(t).Kind, "the bind waits")

		cut.cut.Store(true)
		close(cut.busy)
		var allowed []time.Time
		for range 150 {
			if err := cut.bind(t); err == nil {
				allowed = append(allowed, time.Now())
			} else {
				require.Equal(t, framework.KindWait, err.Kind, "the client must call again: %v", err)
			}
			pass(time.Second)
		}
		require.NotEmpty(t, allowed, "a short interruption has no effect")
		require.NotEmpty(t, shared.rolledBack, "the other replica rolls back the grant")
		last := allowed[len(allowed)-1]
		assert.GreaterOrEqual(t, shared.rolledBack[0].Sub(last), framework.BindSettles,
			"a bind that was allowed %s before the roll-back may be committed after it", shared.rolledBack[0].Sub(last))

		cut.cut.Store(false)
		pass(renewal)
		require.Eventually(t, func() bool { return cut.bind(t) == nil }, 10*time.Minute, time.Second, "the replica allows binds again")
		assert.NotEmpty(t, shared.byPod, "the bind has a grant")
	})
}

// TestFence_PreparedInAnEarlierTerm: a replica renews its lease again. Its earlier writes may be
// gone, even if its caches have them.
func TestFence_PreparedInAnEarlierTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := &grants{byPod: map[types.UID]string{}}
		p := newParty(t, "cut", fakeapi.NewClientset(), shared)
		require.Equal(t, framework.KindWait, p.bind(t).Kind, "the bind waits")
		p.cut.Store(true)
		pass(trusted + time.Second)
		shared.mu.Lock()
		clear(shared.byPod) // Another replica has rolled it back.
		shared.mu.Unlock()

		waits := make(chan *framework.Error, 1)
		p.cut.Store(false)
		pass(renewAgain + time.Second)
		renewed := time.Now()
		go func() { waits <- p.bind(t) }()
		synctest.Wait()
		close(p.busy)
		if err := <-waits; err != nil {
			require.Equal(t, framework.KindWait, err.Kind)
			require.Eventually(t, func() bool { return p.bind(t) == nil }, 10*time.Minute, time.Second)
		}
		assert.NotEmpty(t, shared.byPod, "the bind was allowed with a grant")
		assert.Less(t, time.Since(renewed), 10*time.Second, "an attempt that was never allowed starts again at once")
	})
}

// TestFence_CallThatWaits: the lease is lost while a call waits for PreBind and the cache is stale.
func TestFence_CallThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParty(t, "cut", fakeapi.NewClientset(), &grants{byPod: map[types.UID]string{}})
		require.Equal(t, framework.KindWait, p.bind(t).Kind, "the bind waits")
		p.cut.Store(true)
		pass(trusted - renewal)
		for held := true; held; _, held = p.Term() {
			answer := make(chan *framework.Error, 1)
			go func() { answer <- p.bind(t) }()
			pass(time.Second)
			if _, held := p.Term(); !held {
				close(p.busy)
				err := <-answer
				require.NotNil(t, err, "the lease was lost before PreBind ended")
				assert.Equal(t, framework.KindWait, err.Kind)
			} else {
				assert.Equal(t, framework.KindWait, (<-answer).Kind, "the bind waits")
			}
		}
		p.stale.Store(true)
		err := p.bind(t)
		require.NotNil(t, err, "the cache is behind")
		assert.Equal(t, framework.KindWait, err.Kind)
		assert.ErrorContains(t, p.Held(), "prebind-replica-cut")
	})
}

// TestTrusted_Relations: the times of all replicas are consistent.
func TestTrusted_Relations(t *testing.T) {
	assert.LessOrEqual(t, trusted+framework.BindSettles, duration+work.Grace, "a bind is over before another replica rolls back")
	const takes = 5 * time.Second // The time limit for a request.
	assert.Greater(t, trusted, (takes+renewal)+(2*takes+renewAgain)+takes, "a renewal may time out with and without the status, and the next one is in time")
	assert.Less(t, blind, duration, "old observations are discarded before they count")
	assert.Less(t, 2*observeEvery, blind)
}
