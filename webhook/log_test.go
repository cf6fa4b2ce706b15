// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
)

// logged returns the log lines of a handler for one Binding.
func logged(t *testing.T, verbosity int, d binder.Decision) []map[string]any {
	t.Helper()
	var lines []map[string]any
	log := logr.New(funcr.NewJSON(func(line string) {
		fields := map[string]any{}
		assert.NoError(t, json.Unmarshal([]byte(line), &fields))
		lines = append(lines, fields)
	}, funcr.Options{Verbosity: verbosity}).GetSink())
	h := &Handler{Ready: ready, Log: log, Clock: clock.RealClock{}, Engine: engineFunc(func(ctx context.Context, _ binder.Request) binder.Decision {
		timer := clock.RealClock{}.NewTimer(3 * time.Second)
		defer timer.Stop()
		select {
		case <-timer.C():
		case <-ctx.Done():
		}
		return d
	})}
	serve(t, h, read(t, "allowed.request.json"))
	return lines
}

// TestHandler_DecisionLog checks that the handler logs each decision as one line with stable keys.
func TestHandler_DecisionLog(t *testing.T) {
	refused := framework.Refuse(framework.Object{Kind: "Node", Name: "node-a"}, "no")
	refused.Plugin = "node-state"
	failed := framework.Internal(framework.Object{}, errors.New("boom"))
	failed.Plugin = "device"
	always := map[string]any{"user": "system:kube-scheduler", "node": "node-a", "pod": map[string]any{"name": "web", "namespace": "shop"}}
	with := func(more map[string]any) map[string]any {
		all := maps.Clone(always)
		maps.Copy(all, more)
		return all
	}
	cases := map[string]struct {
		reason   string
		decision binder.Decision
		// at is the minimum verbosity of the line.
		at   int
		want map[string]any
	}{
		"Allowed": {reason: "the bind did not wait", at: 2, want: with(map[string]any{"decision": "allowed", "took": "3s"})},
		"AfterAWait": {
			reason: "the line contains the attempt of the bind", at: 2,
			decision: binder.Decision{Attempt: "a-1", Calls: 3, Waited: 90 * time.Second},
			want:     with(map[string]any{"decision": "allowed", "took": "3s", "attempt": "a-1", "calls": 3.0, "waited": "1m30s"}),
		},
		"Refused": {
			reason: "the line contains the plugin and the reason", at: 2, decision: binder.Decision{Err: refused},
			want: with(map[string]any{"decision": "refused", "took": "3s", "plugin": "node-state", "reason": "node-state: Node node-a: no"}),
		},
		"Failed": {
			reason: "an internal error is logged at every verbosity", decision: binder.Decision{Err: failed, Attempt: "a-1", Calls: 1},
			want: with(map[string]any{"plugin": "device", "attempt": "a-1", "error": "device: boom"}),
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if tc.at > 0 {
					assert.Empty(t, logged(t, tc.at-1, tc.decision), "binds are not logged by default")
				}
				lines := logged(t, tc.at, tc.decision)
				require.Len(t, lines, 1, "%s: one line per decision", tc.reason)
				for _, own := range []string{"logger", "level", "msg"} {
					delete(lines[0], own)
				}
				for _, key := range slices.Sorted(maps.Keys(tc.want)) {
					assert.Equal(t, tc.want[key], lines[0][key], "%s: %s", tc.reason, key)
				}
				assert.Len(t, lines[0], len(tc.want), "%v", lines[0])
			})
		})
	}
}
