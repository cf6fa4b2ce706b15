// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

// confirmer is a plugin with a Confirm.
type confirmer struct {
	checker
	confirm  func() error
	confirms int
}

func (c *confirmer) Confirm(context.Context, framework.Reader, *framework.BindContext) error {
	c.confirms++
	if c.confirm == nil {
		return nil
	}
	return c.confirm()
}

func TestConfirm_RunsAfterPreBind(t *testing.T) {
	t.Run("NothingRan", func(t *testing.T) {
		c := &confirmer{checker: checker{plugin: plugin{name: "c"}, preFlight: skipping}}
		require.Nil(t, engineWith(t, c).Bind(t.Context(), theRequest()).Err)
		assert.Zero(t, c.confirms, "nothing has changed since PreFlight")
	})
	t.Run("Confirmed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := &confirmer{checker: checker{plugin: plugin{name: "c"}, preFlight: skipping}}
			p := &plugin{name: "p"}
			require.Nil(t, engineWith(t, c, p).Bind(t.Context(), theRequest()).Err)
			assert.Equal(t, 1, c.confirms, "another plugin's PreBind may have taken long")
		})
	})
	t.Run("NotConfirmed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := &confirmer{checker: checker{plugin: plugin{name: "c"}, preFlight: skipping}, confirm: func() error { return framework.Refuse(claim, "drained") }}
			p := &plugin{name: "p"}
			d := engineWith(t, c, p).Bind(t.Context(), theRequest())
			require.Equal(t, framework.KindRefuse, kindOf(d.Err))
			assert.Equal(t, "c", d.Err.Plugin)
			synctest.Wait()
			assert.EqualValues(t, 1, p.rollBacks.Load(), "the writes are rolled back")
			assert.Zero(t, c.rollBacks.Load(), "a plugin that was not started is not rolled back")
		})
	})
	t.Run("Panics", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := &confirmer{checker: checker{plugin: plugin{name: "c"}, preFlight: skipping}, confirm: func() error { panic("boom") }}
			p := &plugin{name: "p"}
			d := engineWith(t, c, p).Bind(quiet(t), theRequest())
			require.Equal(t, framework.KindInternal, kindOf(d.Err))
			synctest.Wait()
			assert.EqualValues(t, 1, p.rollBacks.Load())
		})
	})
}

// lastLook is a plugin whose Confirm decides by the reader that it is given: the pod "other"
// must have the label ready.
type lastLook struct {
	plugin
	// lives are the values of BindContext.Live in the calls of Confirm.
	lives []bool
}

func (l *lastLook) Confirm(ctx context.Context, reader framework.Reader, bc *framework.BindContext) error {
	l.lives = append(l.lives, bc.Live)
	other, err := framework.Get(ctx, reader, &corev1.Pod{}, "default", "other")
	if err == nil && labelsOf(other)["ready"] == "" {
		err = framework.Refuse(framework.Object{Kind: "Pod", Namespace: "default", Name: "other"}, "not ready")
	}
	return err
}

// TestConfirm_RejectsByLiveReadsOnly: a plugin that ignores the rule is still correct.
func TestConfirm_RejectsByLiveReadsOnly(t *testing.T) {
	ready, notReady := gen.Pod("other", gen.Label("ready", "yes")), gen.Pod("other")
	cases := map[string]struct {
		reason       string
		cached, live *corev1.Pod
		down         error
		lives        []bool
		want         framework.Kind
	}{
		"Ready":       {reason: "the cache is enough to allow a bind", cached: ready, live: notReady, lives: []bool{false}},
		"CacheBehind": {reason: "the API server returns the label", cached: notReady, live: ready, lives: []bool{false, true}},
		"CacheEmpty":  {reason: "the API server returns the pod", live: ready, lives: []bool{false, true}},
		"NotReady":    {reason: "the API server agrees with the cache", cached: notReady, live: notReady, lives: []bool{false, true}, want: framework.KindRefuse},
		"NoAnswer": {
			reason: "without the API server, the cache does not reject the bind", cached: notReady, live: ready,
			down: apierrors.NewServiceUnavailable("down"), lives: []bool{false, true}, want: framework.KindWait,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				with := func(other *corev1.Pod) *store {
					if other == nil {
						return holding(thePod, theNode)
					}
					return holding(thePod, theNode, other)
				}
				l, live := &lastLook{plugin: plugin{name: "last"}}, with(tc.live)
				var rolledBackLive bool
				l.rollBack = func(_ context.Context, bc *framework.BindContext) error {
					rolledBackLive = bc.Live
					return nil
				}
				e := newTestEngine(t, func(o *Options) {
					o.Cached, o.Live, o.Settings.Plugins = with(tc.cached), live, []framework.PreBinder{l}
				})
				live.fail(tc.down)
				d := e.Bind(t.Context(), theRequest())
				live.fail(nil)
				pass(time.Second)
				assert.Equal(t, tc.lives, l.lives, tc.reason)
				assert.Equal(t, tc.want, kindOf(d.Err), "%s: %v", tc.reason, d.Err)
				if tc.want != "" {
					assert.Equal(t, "last", d.Err.Plugin)
					assert.EqualValues(t, 1, l.rollBacks.Load(), "the writes are rolled back")
					assert.False(t, rolledBackLive, "only Confirm read live")
				}
			})
		})
	}
}
