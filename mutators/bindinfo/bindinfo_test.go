// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bindinfo

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/test/gen"
)

var noon = time.Date(2026, 1, 31, 12, 0, 0, 987654321, time.UTC)

func TestMutate(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, user, scheduler string
		bind                    mutators.Bind
		want                    map[string]string
	}{
		"All": {
			reason: "the time is in UTC, and parts of a millisecond are cut off", user: "system:kube-scheduler", scheduler: "default-scheduler",
			bind: mutators.Bind{Attempt: "x7k2", Calls: 3, Waited: 12345999 * time.Microsecond, At: noon.In(time.FixedZone("east", 7200))},
			want: map[string]string{"user": "system:kube-scheduler", "scheduler": "default-scheduler", "time": "2026-01-31T12:00:00Z", "calls": "3", "waited": "12.345s", "attempt": "x7k2"},
		},
		"Unknown": {
			reason: "empty values are omitted", bind: mutators.Bind{Calls: 1, At: noon},
			want: map[string]string{"time": "2026-01-31T12:00:00Z", "calls": "1", "waited": "0.000s"},
		},
		"AnyUser": {
			reason: "a user name becomes one line of valid UTF-8; the clock was set back", user: "oidc:Jürgen\n\xff\xfe/a b",
			bind: mutators.Bind{Calls: 1, At: noon, Waited: -time.Second},
			want: map[string]string{"user": "oidc:Jürgen /a b", "time": "2026-01-31T12:00:00Z", "calls": "1", "waited": "0.000s"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := gen.Pod("web")
			pod.Spec.SchedulerName = tc.scheduler
			in := mutators.Input{Pod: pod, User: authenticationv1.UserInfo{Username: tc.user}, Bind: tc.bind}
			before := in
			before.Pod = pod.DeepCopy()
			out, err := New().Mutate(in)
			require.NoError(t, err)
			assert.Equal(t, mutators.Output{Annotations: tc.want, Changing: []string{"time", "calls", "waited", "attempt"}}, out, tc.reason)
			assert.Equal(t, before, in, "the mutator does not change its input")
		})
	}
	assert.Equal(t, "bind-info", New().Name())
}
