// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

func TestWaitBegan(t *testing.T) {
	first := time.Unix(10_000, 0)
	ago := func(d time.Duration) framework.Waiting { return framework.Waiting{Since: first.Add(-d)} }
	cases := map[string]struct {
		reason string
		waits  []framework.Waiting
		want   time.Duration
	}{
		"Nothing": {reason: "the plugin knows no time", waits: []framework.Waiting{{}}},
		"Earlier": {reason: "another replica had the first call", waits: []framework.Waiting{ago(39 * time.Second)}, want: 39 * time.Second},
		"First":   {reason: "the bind waits since the first of its waits began", waits: []framework.Waiting{ago(3 * time.Second), ago(39 * time.Second), {}}, want: 39 * time.Second},
		"Later":   {reason: "the call began the wait", waits: []framework.Waiting{ago(-time.Second)}},
		"Stale":   {reason: "no bind waits for longer than its budget, so it is the wait of another bind", waits: []framework.Waiting{ago(time.Hour)}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			bc := &framework.BindContext{}
			for _, w := range tc.waits {
				bc.WouldWait(w)
			}
			assert.Equal(t, tc.want, first.Sub(waitBegan(bc, first, 10*time.Minute)), tc.reason)
		})
	}
}

// A replica that receives the second call of a bind knows from its plugin how long the bind
// has been waiting, and so when the event is due.
func TestRetryAfter_WaitBeganElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const usual = 40 * time.Second
		w := newWaiter()
		var since time.Time
		c := &checker{plugin: plugin{name: w.name, preBind: w.preBind}, preFlight: func(bc *framework.BindContext) (framework.Next, error) {
			bc.WouldWait(framework.Waiting{Since: since})
			return framework.Run, nil
		}}
		second := gen.Pod("second", gen.UID("pod-2"))
		other := gen.Pod("other", gen.UID("pod-3"), gen.InNamespace("other"))
		e := newTestEngine(t, func(o *Options) {
			o.Settings.MaxHolds, o.Settings.Plugins, o.Cached = 1, []framework.PreBinder{c}, holding(thePod, second, other, theNode)
		})
		// The replica sees the last second of this wait only.
		since = time.Now()
		pass(usual - time.Second)
		first := later(t.Context(), e, theRequest())
		pass(time.Second)
		w.release <- nil
		require.Nil(t, (<-first).Err)

		since = time.Now()
		pass(10 * time.Second)
		held := later(t.Context(), e, requestFor(gen.Binding(other, "node-a")))
		synctest.Wait()
		d := e.Bind(t.Context(), requestFor(gen.Binding(second, "node-a")))
		require.Equal(t, framework.KindWait, kindOf(d.Err))
		assert.Equal(t, 29*time.Second, d.RetryAfter, "30 s are left of the usual wait")
		pass(testHold)
		<-held
	})
}
