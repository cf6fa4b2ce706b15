// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/prebind/prebind/test/gen"
)

// Responses to a scheduler through the real API server.
func TestRefusals(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		reason string
		// prepare creates the pod "pod" and its objects.
		prepare func(b *bench)
		node    string
		options []gen.BindingOption
		// is checks the status of the API server's own response.
		is   func(error) bool
		says []string
		// decided is the decision of Prebind. It is empty if the cache decides: it may lack the deletion.
		decided string
	}{
		"unknown node": {
			reason:  "the API server would bind the pod to it, where it never runs",
			prepare: func(b *bench) { b.pod(byHand) },
			node:    "node-none",
			is:      apierrors.IsForbidden,
			says:    []string{"Node node-none: not found", "choose another node"},
			decided: "refused",
		},
		"missing pod": {
			reason:  "a pod that is created a moment later must not be bound unchecked",
			prepare: func(*bench) {},
			node:    "node-1",
			is:      apierrors.IsNotFound,
			says:    []string{"binder: Pod", "not found; discard the Binding"},
			decided: "stale",
		},
		"gated pod": {
			reason:  "the API server must not bind it once its gate is removed",
			prepare: func(b *bench) { b.podWith(byHand, gen.Gate("example.com/quota")) },
			node:    "node-1",
			options: []gen.BindingOption{gen.AtVersion("999999999")},
			is:      apierrors.IsConflict,
			says:    []string{"has non-empty .spec.schedulingGates"},
			decided: "passed-through",
		},
		"terminating pod": {
			reason: "the API server's own answer is the right one",
			prepare: func(b *bench) {
				b.podWith(byHand, keptByTest())
				b.deletePod()
			},
			node: "node-1",
			is:   apierrors.IsConflict,
			says: []string{"is being deleted"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, shared, nil)
			tc.prepare(b)
			err := b.bindByHand(b.binding(tc.node, tc.options...))
			require.Error(t, err, tc.reason)
			if tc.decided == "refused" || tc.decided == "stale" {
				assert.False(t, repeatedByScheduler(err) || apierrors.IsConflict(err), "no scheduler should repeat the bind: %v", err)
			}
			if tc.is != nil {
				assert.True(t, tc.is(err), "%s: %v (%s)", tc.reason, err, apierrors.ReasonForError(err))
			}
			for _, words := range tc.says {
				assert.ErrorContains(t, err, words)
			}
			if tc.decided != "" {
				assert.Equal(t, []string{tc.decided}, b.decisions())
			}
		})
	}
}
