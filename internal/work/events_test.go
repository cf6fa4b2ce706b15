// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package work

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
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
