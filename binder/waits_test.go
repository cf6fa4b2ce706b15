// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/prebind/prebind/internal/work"
)

// Pods that are deleted while they wait are not asked for again.
func TestWaits_ForgetsExpired(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	w := newWaits(clock)
	for _, uid := range []types.UID{"a", "b"} {
		w.change(work.Key{Pod: uid}, clock.Now(), func(*waited) {})
		clock.Step(work.AbandonAfter - time.Second)
	}
	w.all()
	var kept []any
	w.cache.RemoveAll(func(key any) bool {
		kept = append(kept, key)
		return false
	})
	assert.Equal(t, []any{work.Key{Pod: "b"}}, kept)
}
