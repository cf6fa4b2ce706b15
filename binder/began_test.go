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

// TestRetryAfter_WaitBeganElsewhere: a replica that receives the second call of a bind learns from
// the plugin when the wait began, and expects the event accordingly.
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
		// The replica observes only the last second of this wait.
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
		assert.Equal(t, 29*time.Second, d.RetryAfter, "30 s of the usual wait remain")
		pass(testHold)
		<-held
	})
}
