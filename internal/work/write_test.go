// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package work

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/fakeapi"
)

// A call that writes during a rollback learns at once that it has to wait, so that it notices the end of the rollback.
func TestWrite_DuringRollback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lasts = 10 * time.Second
		w := newWriter(&journal{})
		w.rollBack = func(context.Context, framework.Mark) error { pass(lasts); return nil }
		s, e := newFixture(w, thePod).written(t, w)
		synctest.Wait()
		began := time.Now()
		assert.ErrorIs(t, s.Write(t.Context(), e, w, func() error { return nil }), Closing)
		assert.Zero(t, time.Since(began))
		pass(lasts)
		synctest.Wait()
		found, _ := s.Join(Key{Pod: thePod.UID, Node: "node-a"}, "", nil, "")
		assert.Nil(t, found, "the rollback is over")
	})
}

// The cache never has a pod that is too large. Its changes do not lead to reads.
func TestFollow_LargePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads := reading{}
		f := newFixture(newWriter(&journal{}), thePod)
		f.o.Cached, f.o.Recorder = fakeapi.New().Cache(), &reads
		set, e := f.open(t)
		for range 60 {
			f.o.Changes.Wake(thePod)
			pass(time.Second)
		}
		assert.LessOrEqual(t, int(reads.live.Load()), 9)
		set.Leave(e, true, 0)
		pass(time.Minute)
	})
}

// While the API server does not answer, the outcome of a bind that is over is read at intervals.
func TestFollow_Outage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads := reading{}
		f := newFixture(newWriter(&journal{}), thePod)
		f.o.Recorder = &reads
		live := fakeapi.New(thePod).Connect()
		var back atomic.Bool
		live.Before = func(fakeapi.Call) error {
			if !back.Load() {
				return errors.New("the API server does not answer")
			}
			return nil
		}
		f.o.Live = live
		set, e := f.open(t)
		set.Leave(e, false, 0)
		pass(AbandonAfter + time.Minute)
		assert.InDelta(t, 30, reads.live.Load(), 1)
		back.Store(true)
		pass(time.Minute)
	})
}

// reading counts reads of the API server.
type reading struct {
	watcher
	live atomic.Int32
}

func (r *reading) ReadLive(string, string) { r.live.Add(1) }

// The rollback of a plugin that fails again and again does not delay those of others.
func TestRollBack_FailureDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		first, failing := newWriter(j), newWriter(j)
		var rolledBackAfter time.Duration
		began := time.Now()
		first.rollBack = func(context.Context, framework.Mark) error { rolledBackAfter = time.Since(began); return nil }
		failing.rollBack = func(context.Context, framework.Mark) error { return errors.New("another webhook rejects the patch") }
		newFixture(first, thePod).written(t, first, another{failing})
		pass(10 * time.Minute)
		synctest.Wait()
		assert.Less(t, rolledBackAfter, 10*time.Second)
	})
}

// another is a writer with another name.
type another struct{ *recordingWriter }

// Name implements framework.Plugin.
func (another) Name() string { return "another" }

// TestReport_NamesTheNode checks that each note names the node once, and that NodeOf reads it.
func TestReport_NamesTheNode(t *testing.T) {
	for name, tc := range map[string]struct{ reason, note, want string }{
		"Object":      {reason: "the node is the object", note: "p: Node a: cordoned", want: "p: Node a: cordoned"},
		"OtherObject": {reason: "the object is not the node", note: "q: PersistentVolumeClaim shop/data: lost", want: "Node a: q: PersistentVolumeClaim shop/data: lost"},
		"OtherNode":   {reason: "the message of a user names another node", note: "policy: BindPolicy x: Node b: is free", want: "Node a: policy: BindPolicy x: Node b: is free"},
		"Long":        {reason: "the beginning of a long note is kept", note: strings.Repeat("x", maxNote), want: "Node a: " + strings.Repeat("x", maxNote-len("Node a: …")) + "…"},
	} {
		t.Run(name, func(t *testing.T) {
			recorder := events.NewFakeRecorder(1)
			(&Set{o: Options{Events: recorder}}).Report(thePod, "a", nil, corev1.EventTypeWarning, ReasonRefused, tc.note)
			note := strings.TrimPrefix(<-recorder.Events, "Warning BindRefused ")
			assert.Equal(t, tc.want, note, tc.reason)
			assert.Equal(t, "a", NodeOf(note), tc.reason)
		})
	}
	assert.Empty(t, NodeOf("volumebinding: PersistentVolumeClaim shop/data: no Node fits: retry"), "an event of an older version")
}

// keyed records what the event recorder of client-go counts as one event.
type keyed struct {
	events.EventRecorder
	keys []string
}

func (k *keyed) Eventf(_, related runtime.Object, _, reason, action, _ string, _ ...any) {
	node, _ := related.(*corev1.ObjectReference)
	k.keys = append(k.keys, reason+" "+action+" "+node.Name)
}

// The rollback of one plugin or node does not hide that of another one.
func TestRollBack_Events(t *testing.T) {
	recorder := &keyed{}
	s := &Set{o: Options{Events: recorder, Recorder: &watcher{}}}
	for _, m := range []framework.Mark{{PodUID: thePod.UID, Node: "a"}, {PodUID: thePod.UID, Node: "b"}} {
		for _, name := range []string{"p", "q"} {
			require.NoError(t, s.rollBack(t.Context(), named{name: name}, m, thePod))
		}
	}
	assert.Equal(t, []string{"PreBindRolledBack p a", "PreBindRolledBack q a", "PreBindRolledBack p b", "PreBindRolledBack q b"}, recorder.keys)
}

// named is a plugin with this name only.
type named struct {
	framework.PreBinder
	name string
}

func (n named) Name() string { return n.name }

func (named) PreBindRollBack(context.Context, framework.Mark) error { return nil }
