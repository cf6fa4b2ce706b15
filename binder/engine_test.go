// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/mutation"
	"github.com/prebind/prebind/internal/notify"
	"github.com/prebind/prebind/internal/work"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/unrecorded"
)

// fixture is an engine with an API server in memory, whose cache is always up to date.
type fixture struct {
	*Engine
	server *fakeapi.Server
	live   *fakeapi.Connection
	pod    *corev1.Pod
	// runs counts the runs of the mutators.
	runs int

	mu     sync.Mutex
	events []string
}

// Eventf implements events.EventRecorder.
func (s *fixture) Eventf(_, _ runtime.Object, _, reason, _, note string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, reason+": "+fmt.Sprintf(note, args...))
}

func (s *fixture) said() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.events...)
}

// Name and Mutate implement mutators.Mutator.
func (*fixture) Name() string { return "count" }

func (s *fixture) Mutate(in mutators.Input) (mutators.Output, error) {
	s.runs++
	return mutators.Output{Annotations: map[string]string{"devices": fmt.Sprint(len(in.Devices))}}, nil
}

// in runs the test in a bubble with the plugins.
func in(t *testing.T, change func(o *Options), test func(t *testing.T, s *fixture), plugins ...framework.Plugin) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &fixture{pod: gen.Pod("web", gen.UID("pod-1"))}
		s.server = fakeapi.New(s.pod, gen.Node("node-a", gen.UID("node-1")), gen.Node("node-b"))
		s.live = s.server.Connect()
		hub := notify.NewHub()
		s.server.OnChange(func(o client.Object, _ bool) { hub.Wake(o) })
		chain := mutation.NewChain([]mutators.Mutator{s}, nil)
		o := Options{
			Options: work.Options{
				Cached: s.server.Cache(), Live: s.live, Replica: "here", Changes: hub, Term: func() (int64, bool) { return 0, true },
				Events: s, Recorder: unrecorded.Recorder{}, Clock: clock.RealClock{},
			},
			Settings: Settings{
				Mode: ModeEnforce, Mutators: chain, Plugins: plugins, Hold: 25 * time.Second, MaxHolds: 2,
				PreBindTimeout: 10 * time.Minute, MaxPreBindTimeout: 20 * time.Minute,
			},
		}
		if change != nil {
			change(&o)
		}
		s.Engine = New(o)
		test(t, s)
		require.NoError(t, s.Stop(t.Context()))
	})
}

func (s *fixture) post(ctx context.Context, change ...func(*Request)) Decision {
	b := gen.Binding(s.pod, "node-a")
	r := Request{Pod: types.NamespacedName{Namespace: s.pod.Namespace, Name: s.pod.Name}, Binding: b}
	for _, f := range change {
		f(&r)
	}
	return s.Bind(ctx, r)
}

func dryRun(r *Request) { r.DryRun = true }

func annotated(key, value string) func(*Request) {
	return func(r *Request) {
		if r.Binding.Annotations == nil {
			r.Binding.Annotations = map[string]string{}
		}
		r.Binding.Annotations[key] = value
	}
}

// labelled waits for the label a of the node.
func labelled() framework.Plugin {
	return framework.NewPlugin("wait-a", func(_ context.Context, _ framework.Reader, bc *framework.BindContext) (framework.Verdict, error) {
		if _, ok := bc.Node.Labels["a"]; ok {
			return framework.Verdict{
				Annotations: map[string]string{"waited": "yes", "example.com/x": "a"}, Warnings: []string{"mind the gap"},
				Devices: []framework.Device{{Name: "gpu"}},
			}, nil
		}
		return framework.Verdict{Wait: framework.Wait{Object: framework.Object{Kind: "Node", Name: "node-a"}, For: "the label a"}}, nil
	})
}

// TestBind_NilError: a nil *framework.Error of a decision is not an error, and its verdict counts.
func TestBind_NilError(t *testing.T) {
	plugin := framework.NewPlugin("p", func(context.Context, framework.Reader, *framework.BindContext) (framework.Verdict, error) {
		var none *framework.Error
		return framework.Verdict{Annotations: map[string]string{"a": "b"}}, none
	})
	in(t, nil, func(t *testing.T, s *fixture) {
		d := s.post(t.Context())
		require.Nil(t, d.Err)
		assert.Equal(t, map[string]string{"count.prebind.dev/devices": "0", "p.prebind.dev/a": "b"}, d.Annotations)
		assert.Equal(t, types.UID("pod-1"), d.UID, "the Binding is pinned")
		assert.Equal(t, 1, s.runs)
		assert.Empty(t, s.said())
	}, plugin)
}

// rejecting rejects every bind.
func rejecting() framework.Plugin {
	return framework.NewPlugin("p", func(context.Context, framework.Reader, *framework.BindContext) (framework.Verdict, error) {
		return framework.Verdict{}, framework.Refuse(framework.Object{Kind: "Node", Name: "node-a"}, "no").Advise("choose another node")
	})
}

func (s *fixture) label() {
	s.server.Put(gen.Node("node-a", gen.UID("node-1"), gen.Label("a", "yes")))
}

func TestBind_Waits(t *testing.T) {
	in(t, nil, func(t *testing.T, s *fixture) {
		began := time.Now()
		time.AfterFunc(10*time.Second, func() { s.label() })
		d := s.post(t.Context())
		require.Nil(t, d.Err)
		assert.LessOrEqual(t, time.Since(began), 10*time.Second+50*time.Millisecond)
		assert.Equal(t, map[string]string{"count.prebind.dev/devices": "1", "wait-a.prebind.dev/waited": "yes", "example.com/x": "a"}, d.Annotations)
		assert.Equal(t, []string{"mind the gap"}, d.Warnings)
		assert.Equal(t, 1, s.runs, "the mutators run once, for the answer")
		assert.Equal(t, []string{"WaitingForPreBind: wait-a: Node node-a: waiting for the label a (5s); retry the Binding"}, s.said())
		assert.Zero(t, s.Stats().Holds)
	}, labelled())
}

// TestBind_WaitsAgain: a bind that waits for the same object after a rejection has an event again.
func TestBind_WaitsAgain(t *testing.T) {
	rejects := false
	plugin := framework.NewPlugin("p", func(context.Context, framework.Reader, *framework.BindContext) (framework.Verdict, error) {
		node := framework.Object{Kind: "Node", Name: "node-a"}
		if rejects {
			return framework.Verdict{}, framework.Refuse(node, "no")
		}
		return framework.Verdict{Wait: framework.Wait{Object: node, For: "the label a"}}, nil
	})
	in(t, nil, func(t *testing.T, s *fixture) {
		for _, rejects = range []bool{false, true, false} {
			s.post(t.Context())
		}
		const waits = "WaitingForPreBind: p: Node node-a: waiting for the label a (5s); retry the Binding"
		assert.Equal(t, []string{waits, "BindRefused: p: Node node-a: no", waits}, s.said())
	}, plugin)
}

// pass lets virtual time pass.
func pass(d time.Duration) { <-time.After(d) }

func TestBind_NoSeat(t *testing.T) {
	in(t, func(o *Options) { o.Settings.MaxHolds = 0 }, func(t *testing.T, s *fixture) {
		began := time.Now()
		d := s.post(t.Context())
		require.Equal(t, framework.KindWait, d.Err.Kind)
		assert.Zero(t, time.Since(began))
		assert.GreaterOrEqual(t, d.RetryAfter, 2*time.Second)
	}, labelled())
}

// observer is a plugin that waits for the label, and calls the functions as an Observer.
type observer struct {
	*framework.Decider
	waits, decided func()
}

// BindWaits implements framework.Observer.
func (o observer) BindWaits(context.Context, *framework.BindContext, []framework.Wait) { o.waits() }

// BindDecided implements framework.Observer.
func (o observer) BindDecided(context.Context, *framework.BindContext) { o.decided() }

func observing(t *testing.T, waits, decided func()) observer {
	t.Helper()
	decider, ok := labelled().(*framework.Decider)
	require.True(t, ok)
	return observer{decider, waits, decided}
}

// TestObserver_Panics: an Observer changes no decision, and a call gives its seat back.
func TestObserver_Panics(t *testing.T) {
	panics := func() { panic("a bug") }
	in(t, nil, func(t *testing.T, s *fixture) {
		time.AfterFunc(5*time.Second, s.label)
		d := s.post(t.Context())
		require.Nil(t, d.Err)
		assert.Equal(t, 5*time.Second, d.Waited.Truncate(time.Second), "the call was held until the label was set")
		assert.Zero(t, s.Stats().Holds)
	}, observing(t, panics, panics))
}

// TestBind_PanicsLater: a bug outside plugins fails one bind, not the process, and does not keep its seat.
func TestBind_PanicsLater(t *testing.T) {
	in(t, func(o *Options) { o.Cached = o.Live }, func(t *testing.T, s *fixture) {
		var broken atomic.Bool
		s.live.Before = func(fakeapi.Call) error {
			if broken.Load() {
				panic("a bug")
			}
			return nil
		}
		time.AfterFunc(5*time.Second, func() {
			broken.Store(true)
			s.label()
		})
		d := s.post(t.Context())
		assert.Equal(t, framework.KindInternal, d.Err.Kind)
		assert.Equal(t, framework.Binder, d.Err.Plugin)
		assert.ErrorContains(t, d.Err, "panic: a bug: this is a bug in Prebind")
		assert.Zero(t, s.Stats().Holds)
	}, labelled())
}

// A call whose context has ended is never allowed.
func TestBind_ContextEnds(t *testing.T) {
	in(t, nil, func(t *testing.T, s *fixture) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		d := s.post(ctx)
		require.Equal(t, framework.KindWait, d.Err.Kind)
		assert.Equal(t, []string{"WaitingForPreBind: wait-a: Node node-a: waiting for the label a (1s); retry the Binding"}, s.said())
	}, labelled())
}

func TestBind_Parameters(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(*Request)
		kind   framework.Kind
		text   string
	}{
		"Budget":   {reason: "the duration is invalid", change: annotated("binder.prebind.dev/timeout", "soon"), kind: framework.KindInvalid, text: "invalid duration"},
		"Required": {reason: "the plugin is not enabled", change: annotated("binder.prebind.dev/require", "other"), kind: framework.KindRefuse, text: `"other" is not enabled`},
		"Metadata": {reason: "the pod could not be updated any more", change: annotated("no key", "x"), kind: framework.KindInvalid, text: "invalid metadata"},
		"Node":     {reason: "the node does not exist", change: func(r *Request) { r.Binding.Target.Name = "none" }, kind: framework.KindRefuse, text: "Node none: not found"},
		"NodeName": {reason: "the API server accepts every name", change: func(r *Request) { r.Binding.Target.Name = "no/name" }, kind: framework.KindRefuse, text: "invalid name"},
		"Pod":      {reason: "the pod does not exist", change: func(r *Request) { r.Pod.Name, r.Binding.Name = "none", "none" }, kind: framework.KindStale, text: "not found"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			in(t, nil, func(t *testing.T, s *fixture) {
				d := s.post(t.Context(), tc.change)
				require.NotNil(t, d.Err, tc.reason)
				assert.Equal(t, tc.kind, d.Err.Kind, tc.reason)
				assert.Contains(t, d.Err.Error(), tc.text)
				assert.Equal(t, "binder", d.Err.Plugin)
			}, labelled())
		})
	}
}

// TestBind_PodChanges: the API server has its own answer about the pod.
func TestBind_PodChanges(t *testing.T) {
	cases := map[string]struct {
		reason string
		pod    *corev1.Pod
		want   Decision
	}{
		"Bound":    {reason: "another client was faster", pod: gen.Pod("web", gen.UID("pod-1"), gen.BoundTo("node-b")), want: Decision{PassThrough: true, UID: "pod-1"}},
		"Deleted":  {reason: "the pod is terminating", pod: gen.Pod("web", gen.UID("pod-1"), gen.Terminating()), want: Decision{PassThrough: true, UID: "pod-1"}},
		"Replaced": {reason: "the new pod was not checked", pod: gen.Pod("web", gen.UID("pod-2")), want: Decision{PassThrough: true, UID: "pod-1"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			in(t, nil, func(t *testing.T, s *fixture) {
				time.AfterFunc(5*time.Second, func() { s.server.Put(tc.pod) })
				d := s.post(t.Context())
				d.Calls, d.Waited = 0, 0
				assert.Equal(t, tc.want, d, tc.reason)
			}, labelled())
		})
	}
}

// TestBind_ShortTimeout: a client with a short timeout is rejected, too.
func TestBind_ShortTimeout(t *testing.T) {
	in(t, nil, func(t *testing.T, s *fixture) {
		ctx, cancel := context.WithTimeout(t.Context(), Settle/2)
		defer cancel()
		assert.Equal(t, framework.KindRefuse, s.post(ctx).Err.Kind)
	}, rejecting())
}

// TestStop_EndsCalls: a write of a plugin does not last longer than the process.
func TestStop_EndsCalls(t *testing.T) {
	hangs := framework.NewPlugin("hangs", func(ctx context.Context, _ framework.Reader, _ *framework.BindContext) (framework.Verdict, error) {
		<-ctx.Done()
		return framework.Verdict{}, context.Cause(ctx)
	})
	in(t, nil, func(t *testing.T, s *fixture) {
		stopped := make(chan error)
		time.AfterFunc(time.Second, func() { stopped <- s.Stop(t.Context()) })
		began := time.Now()
		d := s.post(t.Context())
		assert.Equal(t, atOnce, d.RetryAfter, "another replica continues: %v", d.Err)
		assert.Equal(t, time.Second, time.Since(began))
		assert.NoError(t, <-stopped)
	}, hangs)
}

// TestBind_DryRunWithoutNode: no plugin was asked.
func TestBind_DryRunWithoutNode(t *testing.T) {
	in(t, func(o *Options) { o.Settings.Mode = ModeAudit }, func(t *testing.T, s *fixture) {
		d := s.post(t.Context(), dryRun, func(r *Request) { r.Binding.Target.Name = "node-z" })
		assert.Empty(t, d.Explanation.Plugins)
		assert.Contains(t, d.Explanation.Refusal.Message, "not found")
	}, labelled())
}

// TestBind_UnreadableNode: a read that fails for a moment does not make a bind late that has waited for long.
func TestBind_UnreadableNode(t *testing.T) {
	in(t, func(o *Options) { o.Cached = fakeapi.New().Cache() }, func(t *testing.T, s *fixture) {
		for range 4 {
			d := s.post(t.Context())
			require.Equal(t, framework.KindWait, d.Err.Kind)
			pass(d.RetryAfter)
		}
		busy := time.Now().Add(10 * time.Second)
		s.live.Before = func(fakeapi.Call) error {
			if time.Now().After(busy) {
				return apierrors.NewTooManyRequests("busy", 1)
			}
			return nil
		}
		assert.Equal(t, atOnce, s.post(t.Context()).RetryAfter)
	}, labelled())
}

func TestBind_NotInTheCache(t *testing.T) {
	in(t, func(o *Options) { o.Cached = fakeapi.New().Cache() }, func(t *testing.T, s *fixture) {
		reads := map[string]int{}
		s.live.Before = func(c fakeapi.Call) error {
			reads[c.Kind]++
			return nil
		}
		for at := 40 * time.Millisecond; at < 4500*time.Millisecond; at += 40 * time.Millisecond {
			time.AfterFunc(at, func() { s.server.Put(gen.Pod("web", gen.UID("pod-1"))) })
		}
		time.AfterFunc(4500*time.Millisecond, func() { s.server.Put(gen.Pod("web", gen.UID("pod-1"), gen.BoundTo("node-b"))) })
		began := time.Now()
		d := s.post(t.Context())
		assert.True(t, d.PassThrough, "another client has bound the pod")
		assert.LessOrEqual(t, time.Since(began), 6*time.Second, "the last change is seen within a second, without another change")
		assert.LessOrEqual(t, reads["Pod"], 7, "one read per second")
		assert.LessOrEqual(t, reads["Node"], 7, "one read per second")
	}, labelled())
}

func TestBind_DryRun(t *testing.T) {
	writer := framework.NewPlugin("write", func(context.Context, framework.Reader, *framework.BindContext) (framework.Verdict, error) {
		return framework.Verdict{Writes: []string{"grant a device"}}, nil
	})
	in(t, nil, func(t *testing.T, s *fixture) {
		d := s.post(t.Context(), dryRun)
		require.Nil(t, d.Err)
		assert.Equal(t, VerdictWait, d.Explanation.Verdict)
		assert.Equal(t, []PluginExplanation{
			{Name: "write", Verdict: PluginActs, Would: []string{"grant a device"}},
			{Name: "wait-a", Verdict: PluginWaits, WaitsFor: []string{"Node node-a: the label a"}},
		}, d.Explanation.Plugins)
		assert.Contains(t, d.Warnings, "dry run: write would grant a device")
	}, writer, labelled())
	in(t, nil, func(t *testing.T, s *fixture) {
		d := s.post(t.Context(), dryRun)
		require.NotNil(t, d.Err)
		assert.Equal(t, VerdictRefuse, d.Explanation.Verdict)
		assert.Len(t, d.Explanation.Plugins, 2, "the explanation has the obstacles of all plugins")
		assert.Empty(t, s.said())
	}, rejecting(), labelled())
}

func TestBind_Audit(t *testing.T) {
	in(t, func(o *Options) { o.Settings.Mode = ModeAudit }, func(t *testing.T, s *fixture) {
		d := s.post(t.Context())
		require.Nil(t, d.Err)
		assert.Empty(t, d.Annotations)
		assert.Equal(t, "refused", d.Audit.Kind)
		assert.Equal(t, []string{"BindAudited: audit: the bind would be rejected (refused): p: Node node-a: no; choose another node"}, s.said())
	}, rejecting())
}

// TestBind_AuditDoesNotWait: reads of the API server that do not end delay no bind for long.
func TestBind_AuditDoesNotWait(t *testing.T) {
	hangs := framework.NewPlugin("hangs", func(ctx context.Context, _ framework.Reader, _ *framework.BindContext) (framework.Verdict, error) {
		<-ctx.Done()
		return framework.Verdict{}, context.Cause(ctx)
	})
	in(t, func(o *Options) { o.Settings.Mode = ModeAudit }, func(t *testing.T, s *fixture) {
		began := time.Now()
		d := s.post(t.Context())
		require.Nil(t, d.Err)
		assert.Equal(t, "waiting", d.Audit.Kind)
		assert.LessOrEqual(t, time.Since(began), 2*Settle)
	}, hangs)
}

func TestBind_ModeOff(t *testing.T) {
	in(t, func(o *Options) { o.Settings.Mode = ModeOff }, func(t *testing.T, s *fixture) {
		assert.Equal(t, Decision{PassThrough: true}, s.post(t.Context()))
	}, rejecting())
}

func TestBind_Drain(t *testing.T) {
	in(t, nil, func(t *testing.T, s *fixture) {
		time.AfterFunc(3*time.Second, s.Drain)
		began := time.Now()
		d := s.post(t.Context())
		require.Equal(t, framework.KindWait, d.Err.Kind)
		assert.Equal(t, 3*time.Second, time.Since(began))
		assert.Equal(t, time.Second, d.RetryAfter)
	}, labelled())
}

// Observers also learn that the engine itself rejects a bind that has waited.
func TestObserver_EngineRejects(t *testing.T) {
	var waits, decided int
	in(t, nil, func(t *testing.T, s *fixture) {
		time.AfterFunc(5*time.Second, func() { s.server.Put(gen.Node("node-a", gen.UID("another"))) })
		d := s.post(t.Context())
		require.Equal(t, framework.KindRefuse, d.Err.Kind)
		assert.Contains(t, d.Err.Error(), "deleted and recreated")
		assert.Equal(t, 1, waits)
		assert.Equal(t, 1, decided)
	}, observing(t, func() { waits++ }, func() { decided++ }))
}
