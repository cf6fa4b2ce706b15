// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package startlimit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestMerge(t *testing.T) {
	now := time.Unix(10000, 0)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	reserved := func(name string, since time.Time) starting {
		return starting{namespace: "default", uid: types.UID(name), since: since, attempt: "attempt"}
	}
	r := rules{limit: 3, timeout: time.Minute}
	cases := map[string]struct {
		reason   string
		pods     []*corev1.Pod
		reserved []starting
		want     []types.UID
		next     time.Time
	}{
		"None":       {reason: "the node is idle"},
		"Pods":       {reason: "the first one counts no longer in 20 s", pods: []*corev1.Pod{boundSince("a", ago(0)), boundSince("b", ago(40*time.Second))}, want: []types.UID{"a", "b"}, next: now.Add(20 * time.Second)},
		"Both":       {reason: "a bind that is in progress counts", pods: []*corev1.Pod{boundSince("a", ago(0))}, reserved: []starting{reserved("b", ago(0))}, want: []types.UID{"a", "b"}, next: now.Add(time.Minute)},
		"Same":       {reason: "a pod with a reservation counts once", pods: []*corev1.Pod{boundSince("a", ago(0))}, reserved: []starting{reserved("a", ago(50*time.Second))}, want: []types.UID{"a"}, next: now.Add(time.Minute)},
		"Old":        {reason: "the pod did not start in time", pods: []*corev1.Pod{boundSince("a", ago(time.Minute))}},
		"OldBind":    {reason: "the reservation was not released in time", reserved: []starting{reserved("a", ago(time.Minute))}},
		"NotCounted": {reason: "the live reader also returns pods that do not count", pods: []*corev1.Pod{boundSince("a", ago(0), waitsFor("ImagePullBackOff"))}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var pods []corev1.Pod
			for _, pod := range tc.pods {
				pods = append(pods, *pod)
			}
			all := r.merge(pods, tc.reserved, now)
			var got []types.UID
			for _, s := range all {
				got = append(got, s.uid)
			}
			assert.Equal(t, tc.want, got, tc.reason)
			assert.True(t, tc.next.Equal(r.next(all)), tc.reason)
		})
	}
}
