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

// locks contains the holder of each node's lock by version, and the versions in which pods with the lock were bound. A list
// does not show earlier changes, so locks ignores the time before it.
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

// record adds a version of a record of devices. If the record is deleted, the lock counts as free.
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

// pod adds a version of a pod that requires the lock, if the version is the first one with a node.
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

// wrongs returns the pods that were bound while another pod held the lock of their node. known is the number of pods for
// which the holder is known.
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
			wrong = append(wrong, fmt.Sprintf("the pod %s was bound to %s while the pod with the UID %s held the lock of that node", b.pod.Name, b.pod.Spec.NodeName, uid))
		}
	}
	return wrong, known
}

// TestLocks checks that a bind despite another pod's lock is reported. An unknown holder is not a violation.
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
		"Own": {reason: "the pod holds the lock during its bind", known: 1, see: func(l *locks) {
			l.record(nil, record("3", "a"), false)
			bind(l, "4", false)
			l.record(nil, record("5", "b"), false)
		}},
		"Others": {reason: "another pod holds the lock during the bind", known: 1, wrong: 1, see: func(l *locks) {
			l.record(nil, record("3", "a"), false)
			bind(l, "6", false)
			l.record(nil, record("5", "b"), false)
		}},
		"Missed": {reason: "a list can hide that the pod held the lock", see: func(l *locks) {
			l.record(nil, record("3", "b"), false)
			bind(l, "6", false)
			l.record(nil, record("9", "b"), true)
		}},
		"Listed":  {reason: "a list does not show the version of the bind", see: func(l *locks) { l.record(nil, record("3", "b"), false); bind(l, "6", true) }},
		"Gone":    {reason: "a deleted record counts as a free lock", known: 1, see: func(l *locks) { l.record(record("3", "b"), nil, false); bind(l, "6", false) }},
		"Nothing": {reason: "the holder before the first version is unknown", see: func(l *locks) { bind(l, "6", false); l.record(nil, record("9", "b"), false) }},
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
