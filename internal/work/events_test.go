// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package work

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	"github.com/prebind/prebind/binder/framework"
)

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
