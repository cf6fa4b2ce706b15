// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/prebind/prebind/test/fakeapi"
)

// TestBindMany checks that the result of the burst shows how many pods were late, and why.
func TestBindMany(t *testing.T) {
	const never = "burst-3"
	tests := map[string]struct {
		reason string
		bound  func(name string) bool
		fails  string
		detail string
	}{
		"All":  {reason: "the times show late pods", bound: func(string) bool { return true }, detail: `^20 pods bound, 90 % in \S+ \(\d+ per second\), the last \(burst-9\) after \S+$`},
		"Late": {reason: "the pod and its event show the cause", bound: func(name string) bool { return name != never }, fails: `^19 of 20 pods were bound within 1s, 90 % in \S+ \(\d+ per second\); pod burst-3 was not bound; its last events: BindRefused: start-limit: full$`},
		"None": {reason: "without a bound pod, there is no rate", bound: func(string) bool { return false }, fails: `^0 of 20 pods were bound within 1s; pod burst-0 was not bound$`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			client := fakeapi.NewClientset(&eventsv1.Event{
				ObjectMeta: metav1.ObjectMeta{Namespace: "prebind-conformance-a", Name: "refused"},
				Regarding:  corev1.ObjectReference{Kind: "Pod", Name: never, UID: types.UID(never)},
				Reason:     "BindRefused", Note: "start-limit: full",
			})
			client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
				create, ok := a.(clienttesting.CreateAction)
				require.True(t, ok)
				pod, ok := create.GetObject().(*corev1.Pod)
				require.True(t, ok)
				pod.UID = types.UID(pod.Name)
				if tc.bound(pod.Name) {
					pod.Spec.NodeName = "node-1"
				}
				return false, nil, nil
			})
			s := sessionOn(client, &bytes.Buffer{})
			s.Burst, s.Timeout = 20, time.Second
			_, detail, err := s.bindMany(t.Context())
			if tc.fails == "" {
				require.NoError(t, err)
				assert.Regexp(t, tc.detail, detail, tc.reason)
				return
			}
			var v *violation
			require.ErrorAs(t, err, &v, tc.reason)
			assert.Regexp(t, tc.fails, v.what, tc.reason)
		})
	}
}

func TestPaceOf(t *testing.T) {
	var seen []boundPod
	for range 46 {
		seen = append(seen, boundPod{name: "early", after: time.Second})
	}
	for range 4 {
		seen = append(seen, boundPod{name: "late", after: 50 * time.Second})
	}
	assert.Equal(t, ", 90 % in 1s (45 per second), the last (late) after 50s", paceOf(seen, 50))
	assert.Equal(t, ", 90 % in 1s (45 per second)", paceOf(seen[:49], 50), "the last pod is not bound")
	assert.Empty(t, paceOf(seen[:44], 50), "fewer than 90 % are bound")
	assert.Equal(t, ", 90 % in 50s (0 per second), the last (late) after 50s", paceOf(seen[49:], 1))
}
