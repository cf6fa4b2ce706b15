// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/internal/replica"
	"github.com/prebind/prebind/internal/work"
)

func TestTextWaits(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	waits := func(pod, plugin, what string, waited time.Duration) work.InFlight {
		return work.InFlight{
			Namespace: "shop", Pod: pod, Node: "a", Phase: work.Waiting, Plugin: plugin, WaitsFor: what,
			Since: metav1.NewTime(now.Add(-waited)), Budget: metav1.Duration{Duration: 10 * time.Minute},
		}
	}
	all := []replica.Status{
		{Holds: 3, LeftOut: 2, InFlight: []work.InFlight{
			waits("web-0", "volumebinding", "PersistentVolumeClaim shop/data-0: to be bound", time.Minute),
			waits("model", "policy", "BindPolicy model: task prefetch of example.com/prefetch: 3 of 5 layers", 3*time.Minute),
			{Namespace: "shop", Pod: "ready", Phase: work.Allowed, Since: metav1.NewTime(now.Add(-time.Hour))},
		}},
		{Holds: 1, InFlight: []work.InFlight{
			waits("web-1", "volumebinding", "PersistentVolumeClaim shop/data-1: to be bound", 5*time.Minute),
			waits("turn", "start-limit", "its turn", time.Second),
		}},
	}
	var out bytes.Buffer
	textWaits(&out, all, now)
	assert.Equal(t, `12:00:00  4 binds wait, 4 calls are held, 2 replicas

BINDS   OLDEST   TIMEOUT   POD          NODE   PLUGIN          WAITING FOR
2       5m       10m       shop/web-1   a      volumebinding   PersistentVolumeClaim: to be bound
1       3m       10m       shop/model   a      policy          BindPolicy model: task prefetch of example.com/prefetch: 3 of 5 layers
1       1s       10m       shop/turn    a      start-limit     its turn

2 more binds are not reported: a replica reports at most 64 KiB.
`, out.String())

	out.Reset()
	textWaits(&out, nil, now)
	assert.Equal(t, "12:00:00  0 binds wait, 0 calls are held, 0 replicas\n\n", out.String())
}
