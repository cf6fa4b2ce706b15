// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/test/gen"
)

const lockIt = "device.prebind.dev/node-lock"

// locks contains the holder of each node's lock per version, and the pods with the lock that were bound in each version. A list
// does not show earlier changes, so that time is not checked.
type locks struct {
	mu     sync.Mutex
	holder map[string][]holding
	binds  []lockedBind
}

// holding is a version of a record: the lock belongs to the pod, or is free.
type holding struct {
	version uint64
	uid     types.UID
	listed  bool
}

type lockedBind struct {
	pod     *corev1.Pod
	version uint64
}

// record books a version of a record of devices. After its deletion the lock counts as free.
func (l *locks) record(before, now client.Object, listed bool) {
	gone := now == nil
	if gone {
		now, listed = before, true
	}
	r, ok := now.(*corev1.ConfigMap)
	if !ok || r.Data["node"] == "" {
		return
	}
	var lock struct {
		UID types.UID `json:"uid"`
	}
	version := versionOf(r)
	if gone {
		version++
	} else {
		_ = json.Unmarshal([]byte(r.Data["node-lock"]), &lock)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	node := r.Data["node"]
	l.holder[node] = append(l.holder[node], holding{version: version, uid: lock.UID, listed: listed})
}

// pod books a version of a pod that takes the lock, if it has just been bound.
func (l *locks) pod(before, now client.Object, listed bool) {
	was, _ := before.(*corev1.Pod)
	pod, ok := now.(*corev1.Pod)
	if !ok || was == nil || listed || was.Spec.NodeName != "" || pod.Spec.NodeName == "" || pod.Annotations[lockIt] != "true" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.binds = append(l.binds, lockedBind{pod: pod, version: versionOf(pod)})
}

func versionOf(o client.Object) uint64 {
	n, _ := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	return n
}

// wrongs are the pods that were bound while the lock of their node was another pod's.
// known is of how many that can be said at all.
func (l *locks) wrongs() (wrong []string, known int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.binds {
		all := l.holder[b.pod.Spec.NodeName]
		at := -1
		for i, h := range all {
			if h.version <= b.version {
				at = i
			}
		}
		if at < 0 || at+1 < len(all) && all[at+1].listed {
			continue
		}
		known++
		if uid := all[at].uid; uid != "" && uid != b.pod.UID {
			wrong = append(wrong, fmt.Sprintf("the pod %s was bound to %s while the lock of that node was that of the pod with the UID %s", b.pod.Name, b.pod.Spec.NodeName, uid))
		}
	}
	return wrong, known
}

// TestLocks: a bind despite another pod's lock is reported, and unknown states are not.
func TestLocks(t *testing.T) {
	record := func(version, holder string) client.Object {
		c := &corev1.ConfigMap{Data: map[string]string{"node": "node-1", "node-lock": `{"uid":"` + holder + `"}`}}
		c.ResourceVersion = version
		return c
	}
	bind := func(l *locks, version string, listed bool) {
		pod := gen.Pod("a", gen.UID("a"), gen.BoundTo("node-1"), gen.Annotation(lockIt, "true"))
		pod.ResourceVersion = version
		l.pod(gen.Pod("a", gen.UID("a")), pod, listed)
	}
	cases := map[string]struct {
		reason string
		see    func(l *locks)
		wrong  int
		known  int
	}{
		"Own": {reason: "as it should be", known: 1, see: func(l *locks) {
			l.record(nil, record("3", "a"), false)
			bind(l, "4", false)
			l.record(nil, record("5", "b"), false)
		}},
		"Others": {reason: "it was taken from it", known: 1, wrong: 1, see: func(l *locks) {
			l.record(nil, record("3", "a"), false)
			bind(l, "6", false)
			l.record(nil, record("5", "b"), false)
		}},
		"Missed": {reason: "it may have been its own in between", see: func(l *locks) {
			l.record(nil, record("3", "b"), false)
			bind(l, "6", false)
			l.record(nil, record("9", "b"), true)
		}},
		"Listed":  {reason: "the time of its bind is unknown", see: func(l *locks) { l.record(nil, record("3", "b"), false); bind(l, "6", true) }},
		"Gone":    {reason: "it may have been there again", known: 1, see: func(l *locks) { l.record(record("3", "b"), nil, false); bind(l, "6", false) }},
		"Nothing": {reason: "nor who had the lock before", see: func(l *locks) { bind(l, "6", false); l.record(nil, record("9", "b"), false) }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			l := &locks{holder: map[string][]holding{}}
			tc.see(l)
			wrong, known := l.wrongs()
			assert.Len(t, wrong, tc.wrong, tc.reason)
			assert.Equal(t, tc.known, known, tc.reason)
		})
	}
}
