// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/fakeapi"
)

// podsIn returns the names of the pods of the run.
func podsIn(t *testing.T, s *session) []string {
	t.Helper()
	pods, err := s.pods(t.Context(), "")
	require.NoError(t, err)
	names := []string{}
	for _, pod := range pods {
		names = append(names, pod.Name)
	}
	return names
}

// TestMake_Pods checks that the pods of a check that does not pass are gone before the next check.
func TestMake_Pods(t *testing.T) {
	tests := map[string]struct {
		reason string
		err    error
		// slow makes the cluster overloaded.
		slow bool
		keep bool
		want []string
	}{
		"Pass":     {reason: "later checks can count on the pods", want: []string{"a", "b", "probe"}},
		"Fail":     {reason: "a pod that is not bound delays others", err: &violation{what: "x"}, want: []string{"probe"}},
		"Error":    {reason: "the state of the pods is unknown", err: errors.New("x"), want: []string{"probe"}},
		"NoResult": {reason: "the pods of a check without a result delay others too", err: &violation{what: "x"}, slow: true, want: []string{"probe"}},
		"Skip":     {reason: "the check created nothing that waits", err: &skip{"x"}, want: []string{"a", "b", "probe"}},
		"Keep":     {reason: "the user wants to look at the pods", err: &violation{what: "x"}, keep: true, want: []string{"a", "b", "probe"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := sessionOn(fakeapi.NewClientset(), &bytes.Buffer{})
			s.Keep = tc.keep
			if tc.slow {
				s.meter = &meter{calls: []referenceCall{{began: time.Now().Add(-2 * slowCall)}}}
			}
			_, err := s.create(t.Context(), s.pod("probe"))
			require.NoError(t, err)
			r := s.make(t.Context(), check{name: "x", run: func(s *session, ctx context.Context) (string, error) {
				for _, name := range []string{"a", "b"} {
					_, err := s.create(ctx, s.pod(name))
					require.NoError(t, err)
				}
				// Another component replaces a pod.
				pods := s.client.CoreV1().Pods(s.ns)
				require.NoError(t, pods.Delete(ctx, "b", metav1.DeleteOptions{}))
				_, err := pods.Create(ctx, s.pod("b"), metav1.CreateOptions{})
				require.NoError(t, err)
				return "", tc.err
			}})
			assert.Equal(t, tc.slow, r.Status == NoResult, r.Status)
			assert.Equal(t, tc.want, podsIn(t, s), tc.reason)
		})
	}
}

// TestMake_Interrupted checks that an interrupted run starts no check, and does not report those in progress.
func TestMake_Interrupted(t *testing.T) {
	var progress bytes.Buffer
	s := sessionOn(fakeapi.NewClientset(), &progress)
	ctx, interrupt := context.WithCancel(t.Context())
	made := 0
	c := check{name: "x", run: func(*session, context.Context) (string, error) {
		made++
		interrupt()
		return "", errInterrupted
	}}
	assert.Equal(t, Errored, s.make(ctx, c).Status)
	assert.Equal(t, Errored, s.make(ctx, c).Status)
	assert.Equal(t, 1, made)
	assert.Equal(t, "x: started\n", progress.String())
}
