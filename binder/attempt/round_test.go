// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package attempt

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/prebind/prebind/binder/framework"
)

func TestWaitBegan(t *testing.T) {
	first := time.Unix(10_000, 0)
	ago := func(d time.Duration) framework.Waiting { return framework.Waiting{Since: first.Add(-d)} }
	cases := map[string]struct {
		reason string
		waits  []framework.Waiting
		want   time.Duration
	}{
		"Nothing": {reason: "the plugin reports no time", waits: []framework.Waiting{{}}},
		"Earlier": {reason: "another replica had the first call", waits: []framework.Waiting{ago(39 * time.Second)}, want: 39 * time.Second},
		"First":   {reason: "the earliest wait counts", waits: []framework.Waiting{ago(3 * time.Second), ago(39 * time.Second), {}}, want: 39 * time.Second},
		"Later":   {reason: "the wait began with the call", waits: []framework.Waiting{ago(-time.Second)}},
		"Stale":   {reason: "a wait longer than the budget belongs to another bind", waits: []framework.Waiting{ago(time.Hour)}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			bc := &framework.BindContext{}
			for _, w := range tc.waits {
				bc.WouldWait(w)
			}
			assert.Equal(t, tc.want, first.Sub(WaitBegan(bc, first, 10*time.Minute)), tc.reason)
		})
	}
}
