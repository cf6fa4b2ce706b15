// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/plugintest"
)

// waiting is the PreBind of a pod that waits up to 30s for the value 550 of the label driver.
type waiting struct {
	*plugintest.Running
	cached, live *world
	bc           *framework.BindContext
}

func begin(ctx context.Context, t *testing.T, cached, live *corev1.Node, options ...gen.BindingOption) *waiting {
	t.Helper()
	options = append([]gen.BindingOption{annotation("expect", "driver=550"), annotation("wait", "30s")}, options...)
	w := &waiting{cached: newWorld(cached), live: newWorld(live), bc: contextFor(thePod(), theNode(), options...)}
	p := pluginBetween(t, w.cached, w.live)
	w.Running = plugintest.Start(func() error { return p.PreBind(ctx, w.bc) })
	return w
}

// put changes the node in the cache and in the API server.
func (w *waiting) put(node *corev1.Node) {
	w.live.put(node)
	w.cached.put(node)
	w.cached.tell()
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begin(t.Context(), t, theNode(label("driver", "535")), theNode(label("driver", "535")))
		ended, err := w.Ended()
		require.False(t, ended, "%v", err)
		assert.Equal(t, framework.Waiting{
			Object: framework.Object{Kind: "Node", Name: "node-a"}, For: `the label driver to be "550" (it is "535")`, Until: w.bc.Now.Add(30 * time.Second),
		}, w.bc.ReportedWait(), "the wait is reported")

		reads := w.cached.count()
		<-time.After(29 * time.Second)
		ended, _ = w.Ended()
		require.False(t, ended)
		assert.Equal(t, reads, w.cached.count(), "the wait reads nothing until the node changes")

		w.put(theNode(cordoned, label("driver", "550")))
		ended, _ = w.Ended()
		require.False(t, ended, "the wait also covers the checks")
		assert.Equal(t, "the node to be schedulable (it is cordoned)", w.bc.ReportedWait().For, "the reported wait shows the check")
		assert.Zero(t, w.live.count(), "an event causes no live read")

		changed := time.Now()
		w.put(theNode(label("driver", "550")))
		ended, err = w.Ended()
		assert.True(t, ended)
		require.NoError(t, err)
		assert.Zero(t, time.Since(changed), "the wait ends immediately")
		assert.Zero(t, w.live.count(), "a successful check of the cache needs no live read")
	})
}

func TestWait_NodePassesAllChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended, err := begin(t.Context(), t, theNode(label("driver", "550")), nil).Ended()
		assert.True(t, ended, "the first check ends the wait")
		require.NoError(t, err)
	})
}

// The node changes between the first check and the wait.
func TestWait_MissesNoChangeAtItsStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cached := newWorld(theNode())
		first := true
		cached.afterRead = func() {
			if first {
				first = false
				cached.put(theNode(label("driver", "550")))
				cached.tell()
			}
		}
		p := pluginBetween(t, cached, newWorld(nil))
		bc := contextFor(thePod(), theNode(), annotation("expect", "driver=550"), annotation("wait", "30s"))
		began := time.Now()
		require.NoError(t, p.PreBind(t.Context(), bc))
		assert.Zero(t, time.Since(began), "the plugin subscribes before it reads the node")
	})
}

func TestWait_TimesOut(t *testing.T) {
	overloaded := apierrors.NewServiceUnavailable("restarting")
	cases := map[string]struct {
		reason  string
		live    *corev1.Node
		err     error
		options []gen.BindingOption
		after   time.Duration
		want    framework.Kind
		message string
	}{
		"InVain": {
			reason: "the message contains the wait and its duration", live: theNode(label("driver", "535")), after: 30 * time.Second, want: framework.KindRefuse,
			message: `Node node-a: still waiting for the label driver to be "550" (it is "535") after 30s; choose another node`,
		},
		"Capped": {
			reason: "the operator limits the wait", live: theNode(), options: []gen.BindingOption{annotation("wait", "5h")}, after: maxWait, want: framework.KindRefuse,
			message: `Node node-a: still waiting for the label driver to be "550" (it is not set) after 1m0s; choose another node`,
		},
		"CacheBehind": {reason: "the event has not arrived yet", live: theNode(label("driver", "550")), after: 30 * time.Second},
		"Gone": {
			reason: "the event has not arrived yet", after: 30 * time.Second, want: framework.KindRefuse,
			message: "Node node-a: the node does not exist; choose another node",
		},
		"Fails":      {reason: "an unreadable node cannot be checked", err: errors.New("boom"), after: 30 * time.Second, want: framework.KindInternal},
		"Overloaded": {reason: "the failure is temporary, and the next call waits again", err: overloaded, after: 30 * time.Second, want: framework.KindWait},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := begin(t.Context(), t, theNode(), tc.live, tc.options...)
				w.live.fail(tc.err)
				<-time.After(tc.after - time.Nanosecond)
				ended, err := w.Ended()
				require.False(t, ended, "the wait has not timed out yet: %v", err)
				assert.Zero(t, w.live.count())
				<-time.After(time.Nanosecond)
				ended, err = w.Ended()
				require.True(t, ended, tc.reason)
				assert.Equal(t, 1, w.live.count(), "the wait ends with one live read")
				if tc.want == "" {
					require.NoError(t, err, tc.reason)
					return
				}
				require.Error(t, err, tc.reason)
				assert.True(t, framework.IsKind(err, tc.want), "%s: %v", tc.reason, err)
				if tc.message != "" {
					assert.EqualError(t, err, tc.message, tc.reason)
				}
			})
		})
	}
}

func TestWait_Ends(t *testing.T) {
	cases := map[string]struct {
		reason  string
		event   func(w *waiting)
		want    framework.Kind
		message string
	}{
		"Gone": {
			reason: "the node does not exist", event: func(w *waiting) { w.put(nil) },
			want: framework.KindRefuse, message: "Node node-a: the node does not exist; choose another node",
		},
		"Leaving": {
			reason: "the node is being deleted", event: func(w *waiting) { w.put(theNode(terminating)) },
			want: framework.KindRefuse, message: "Node node-a: the node is being deleted; choose another node",
		},
		"Replaced": {
			reason: "a recreated node is a different node", event: func(w *waiting) { w.put(theNode(uid("node-2"), label("driver", "550"))) },
			want: framework.KindRefuse, message: "Node node-a: the node was deleted and recreated; schedule the pod again",
		},
		"BothFail": {
			reason: "an unreadable node cannot be checked", want: framework.KindInternal,
			event: func(w *waiting) {
				w.cached.fail(errors.New("boom"))
				w.live.fail(errors.New("bang"))
				w.cached.tell()
			},
			message: "Node node-a: reading it: bang",
		},
		"Overloaded": {
			reason: "the failure is temporary, and the next call continues", want: framework.KindWait,
			event: func(w *waiting) {
				w.live.fail(apierrors.NewServiceUnavailable("restarting"))
				w.cached.put(nil)
				w.cached.tell()
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := begin(t.Context(), t, theNode(), theNode())
				ended, err := w.Ended()
				require.False(t, ended, "PreBind waits before the event: %v", err)
				began := time.Now()
				tc.event(w)
				ended, err = w.Ended()
				require.True(t, ended, tc.reason)
				assert.Zero(t, time.Since(began), "the wait ends immediately")
				require.Error(t, err, tc.reason)
				assert.True(t, framework.IsKind(err, tc.want), "%s: %v", tc.reason, err)
				if tc.message != "" {
					assert.EqualError(t, err, tc.message, tc.reason)
				}
			})
		})
	}
}

func TestWait_DoesNotEndBasedOnTheCacheAlone(t *testing.T) {
	cases := map[string]struct {
		reason string
		cached *corev1.Node
		err    error
	}{
		"Gone":     {reason: "the cache can be behind"},
		"Replaced": {reason: "the cache can be behind", cached: theNode(uid("node-0"))},
		"Leaving":  {reason: "the cache can be behind", cached: theNode(terminating)},
		"Fails":    {reason: "the API server still returns the node", cached: theNode(), err: errors.New("boom")},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := begin(t.Context(), t, theNode(), theNode())
				w.cached.put(tc.cached)
				w.cached.fail(tc.err)
				w.cached.tell()
				ended, err := w.Ended()
				require.False(t, ended, "%s: %v", tc.reason, err)
				assert.Equal(t, 1, w.live.count(), "the plugin reads the node from the API server")
				w.cached.fail(nil)
				w.put(theNode(label("driver", "550")))
				ended, err = w.Ended()
				assert.True(t, ended)
				require.NoError(t, err)
			})
		})
	}
}

func TestWait_EndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over := errors.New("over")
		ctx, cancel := context.WithCancelCause(t.Context())
		w := begin(ctx, t, theNode(), theNode())
		cancel(over)
		ended, err := w.Ended()
		assert.True(t, ended)
		require.ErrorIs(t, err, over, "the wait returns the cause of the context")
	})
}

func TestPreBind_InvalidParameters(t *testing.T) {
	world := newWorld(theNode())
	err := pluginBetween(t, world, world).PreBind(t.Context(), contextFor(thePod(), theNode(), annotation("wait", "x")))
	assert.True(t, framework.IsKind(err, framework.KindInvalid), "%v", err)
}

// The test runs PreFlight and PreBind twice, as after a crash.
func TestPreBind_AfterPreFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		world := newWorld(theNode())
		p := pluginBetween(t, world, world)
		results := make(chan error, 2)
		for range 2 {
			bc := contextFor(thePod(), theNode(), annotation("expect-conditions", "GPUReady"), annotation("wait", "30s"))
			next, err := p.PreFlight(bc)
			require.NoError(t, err)
			require.Equal(t, framework.Verify, next)
			go func() { results <- p.PreBind(t.Context(), bc) }()
			synctest.Wait()
		}
		ready := theNode(reports("GPUReady", "True", ""))
		world.put(ready)
		world.tell()
		require.NoError(t, <-results)
		require.NoError(t, <-results)

		bc := contextFor(thePod(), ready, annotation("expect-conditions", "GPUReady"), annotation("wait", "30s"))
		require.NoError(t, p.Confirm(t.Context(), world, bc))
		next, err := p.PreFlight(bc)
		require.NoError(t, err)
		assert.Equal(t, framework.Skip, next, "the repeated call has nothing to do")
	})
}
