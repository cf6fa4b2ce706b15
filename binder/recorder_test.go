// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

// watcher is a Recorder that records the outcomes of attempts.
type watcher struct {
	unrecorded
	journal
}

func (w *watcher) AttemptEnded(outcome string) { w.add("ended: " + outcome) }
func (w *watcher) RolledBack(plugin string, err error) {
	w.add(fmt.Sprint("rolled back: ", plugin, " ", err))
}

func (w *watcher) Swept(plugin, verdict string, err error) {
	w.add(fmt.Sprint("swept: ", plugin, " ", verdict, " ", err))
}

func TestRecorder_Outcomes(t *testing.T) {
	bound := gen.Pod(thePod.Name, gen.UID(thePod.UID), gen.BoundTo("node-a"))
	cases := map[string]struct {
		reason  string
		preBind error
		// becomes is the pod after the bind was allowed.
		becomes *corev1.Pod
		want    []string
	}{
		"Bound":    {reason: "the pod names no attempt", becomes: bound, want: []string{"ended: bound by another attempt"}},
		"NotBound": {reason: "every plugin is rolled back", becomes: terminatingCopy(), want: []string{"ended: not bound", "rolled back: p <nil>"}},
		"Refused":  {reason: "a failed PreBind may have written", preBind: framework.Refuse(claim, "no"), want: []string{"rolled back: p <nil>"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &plugin{name: "p", preBind: func(context.Context, *framework.BindContext) error { return tc.preBind }}
				w := &watcher{}
				s := newSceneWith(t, func(o *Options) { o.Recorder = w }, p)
				s.Bind(quiet(t), theRequest())
				if tc.becomes != nil {
					s.podIs(tc.becomes)
				}
				synctest.Wait()
				assert.Equal(t, tc.want, w.all(), tc.reason)
			})
		})
	}
}

func TestStats_HasAllPhases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiter()
		e := newTestEngine(t, func(o *Options) {
			o.Settings.Plugins, o.Settings.MaxHolds, o.Live = []framework.PreBinder{w}, 7, holding(thePod)
		})
		none := Stats{Attempts: map[string]int{"preparing": 0, "prepared": 0, "failed": 0, "undoing": 0}, MaxHolds: 7}
		require.Equal(t, none, e.Stats(), "every phase has a value")
		held := later(t.Context(), e, theRequest())
		synctest.Wait()
		now := e.Stats()
		assert.Equal(t, 1, now.Attempts["preparing"])
		assert.Equal(t, 1, now.Holds)
		w.release <- nil
		<-held
		now = e.Stats()
		assert.Equal(t, 1, now.Attempts["prepared"])
		assert.Zero(t, now.Holds)
	})
}
