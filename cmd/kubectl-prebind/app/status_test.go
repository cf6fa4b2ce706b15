// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/prebind/prebind/internal/replica"
	"github.com/prebind/prebind/internal/work"
)

func TestStatusOptions_Text(t *testing.T) {
	now := time.Now()
	o := &statusOptions{clock: clocktesting.NewFakeClock(now), own: "own"}
	var out bytes.Buffer
	o.text(&out, nil)
	assert.Equal(t, "No replica of Prebind has a lease in namespace own.\n", out.String())

	ago := func(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }
	all := []replica.Status{
		{Replica: "aaa", Pod: "prebind-1", Version: "v1", Config: "123", Mode: "Enforce", Attempts: map[string]int{"preparing": 3, "prepared": 1}, LeftOut: 3, Holds: 2, MaxHolds: 32, Reported: ago(3 * time.Second), InFlight: []work.InFlight{
			{Namespace: "shop", Pod: "web", Node: "a", Attempt: "aaa-1", Phase: "preparing", Plugin: "q", WaitsFor: "rain", Since: ago(time.Minute), Budget: metav1.Duration{Duration: 10 * time.Minute}},
		}},
		{Replica: "bbb", Leader: true, Problem: "draining", Reported: ago(time.Second), InFlight: []work.InFlight{
			{Namespace: "shop", Pod: "old", Node: "b", Attempt: "bbb-1", Phase: "prepared", Since: ago(time.Hour), Budget: metav1.Duration{Duration: time.Hour}},
			{Namespace: "other", Pod: "web", Node: "b", Attempt: "bbb-2", Phase: "prepared", Since: ago(time.Second), Budget: metav1.Duration{Duration: time.Hour}},
		}},
		{Replica: "ccc", Reported: ago(time.Minute)},
	}
	const replicas = `REPLICA   LEADER   POD         VERSION   MODE      CONFIG   PREPARING   PREPARED   HOLDS   REPORTED   READY
aaa       no       prebind-1   v1        Enforce   123      3           1          2/32    3s ago     yes
bbb       yes      -           -         -         -        0           0          0/0     1s ago     no: draining
ccc       no       -           -         -         -        0           0          0/0     60s ago    unknown: no report for 60s

`
	const leftOut = `
3 more binds are not reported: a replica reports at most 64 KiB.
`
	for _, tc := range []struct{ reason, namespace, pod, binds string }{
		{"without filters, all are shown, the oldest first", "", "", `NAMESPACE   POD   NODE   REPLICA   PHASE       AGE   TIMEOUT   PLUGIN   WAITING FOR
shop        old   b      bbb       prepared    60m   60m       -        -
shop        web   a      aaa       preparing   60s   10m       q        rain
other       web   b      bbb       prepared    1s    60m       -        -
`},
		{"the filters apply together", "shop", "web", `NAMESPACE   POD   NODE   REPLICA   PHASE       AGE   TIMEOUT   PLUGIN   WAITING FOR
shop        web   a      aaa       preparing   60s   10m       q        rain
`},
		{"a namespace is matched exactly", "sho", "", "No binds in progress.\n"},
	} {
		o.namespace, o.pod = tc.namespace, tc.pod
		shown := make([]replica.Status, len(all))
		for i, s := range all {
			s.InFlight = append([]work.InFlight{}, s.InFlight...)
			shown[i] = s
		}
		o.filter(shown)
		out.Reset()
		o.text(&out, shown)
		assert.Equal(t, replicas+tc.binds+leftOut, out.String(), tc.reason)
	}
}

func TestHealth(t *testing.T) {
	now := time.Now()
	ahead := func(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }
	for want, s := range map[string]replica.Status{
		"yes":                                   {},
		"no: draining":                          {Problem: "draining"},
		"yes; its clock is 60m ahead":           {ClockAhead: ahead(time.Hour)},
		"no: draining; its clock is 90s behind": {Problem: "draining", ClockAhead: ahead(-90 * time.Second)},
	} {
		s.Reported = metav1.NewTime(now)
		assert.Equal(t, want, health(s, now))
	}
}

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
