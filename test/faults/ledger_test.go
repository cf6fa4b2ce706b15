// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
)

// ledger observes all versions of pods and claims, and records violations. It uses only the API.
type ledger struct {
	mu    sync.Mutex
	pods  map[types.UID]*corev1.Pod
	line  []types.UID
	bound map[types.UID]string
	// devices contains the holders of shares by node and device.
	devices map[string]map[types.UID]float64
	// given contains the claim of each device.
	given map[string]types.UID
	locks locks
	wrong []string
}

func emptyLedger() *ledger {
	return &ledger{
		pods: map[types.UID]*corev1.Pod{}, bound: map[types.UID]string{}, devices: map[string]map[types.UID]float64{}, given: map[string]types.UID{},
		locks: locks{holder: map[string][]holding{}},
	}
}

func newLedger(t *testing.T, w *world) *ledger {
	t.Helper()
	l := emptyLedger()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		all.Wait()
	})
	watch := func(namespace string, list client.ObjectList, see seer) {
		all.Go(func() { follow(ctx, w.watcher, namespace, list, see) })
	}
	watch(ns, &corev1.PodList{}, func(before, now client.Object, listed bool) {
		l.pod(before, now)
		l.locks.pod(before, now, listed)
	})
	watch(ns, &corev1.PersistentVolumeClaimList{}, func(before, now client.Object, _ bool) { l.claim(before, now) })
	watch(ns, claims(), func(before, now client.Object, _ bool) { l.resourceClaim(before, now) })
	watch(install.Namespace, records(), l.locks.record)
	return l
}

// seer observes a change. before is nil for a new object, now is nil for a deleted object. If listed is true, a list has
// returned the object, and earlier changes may be missing.
type seer func(before, now client.Object, listed bool)

// follow lists and watches objects, and reports every change. It lists again after the end of a watch. It reports deletions
// that a list shows before additions.
func follow(ctx context.Context, c client.WithWatch, namespace string, list client.ObjectList, see seer) {
	known := map[types.UID]client.Object{}
	next := func(o client.Object, listed bool) {
		see(known[o.GetUID()], o, listed)
		known[o.GetUID()] = o
	}
	gone := func(uid types.UID) {
		if before := known[uid]; before != nil {
			see(before, nil, false)
			delete(known, uid)
		}
	}
	for ; ctx.Err() == nil; pause(ctx, 200*time.Millisecond) {
		if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
			continue
		}
		found := map[types.UID]client.Object{}
		each(list, func(o client.Object) { found[o.GetUID()] = o })
		for uid := range known {
			if found[uid] == nil {
				gone(uid)
			}
		}
		for _, o := range found {
			next(o, true)
		}
		events, err := c.Watch(ctx, list, client.InNamespace(namespace), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}})
		if err != nil {
			continue
		}
		for e := range events.ResultChan() {
			o, ok := e.Object.(client.Object)
			switch {
			case !ok:
				events.Stop() // For example 410 Gone.
			case e.Type == "DELETED":
				gone(o.GetUID())
			default:
				next(o, false)
			}
		}
	}
}

// each calls do with a copy of each item.
func each(list client.ObjectList, do func(client.Object)) {
	items, err := apimeta.ExtractList(list)
	if err != nil {
		return
	}
	for _, item := range items {
		if o, ok := item.DeepCopyObject().(client.Object); ok {
			do(o)
		}
	}
}

func (l *ledger) odd(format string, args ...any) {
	l.wrong = append(l.wrong, fmt.Sprintf(format, args...))
}

// pod adds a version of a pod.
func (l *ledger) pod(before, now client.Object) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pod, ok := now.(*corev1.Pod)
	if !ok {
		l.gone(before.GetUID())
		return
	}
	if l.pods[pod.UID] == nil {
		l.line = append(l.line, pod.UID)
	}
	l.pods[pod.UID] = pod
	node, was := l.bound[pod.UID]
	switch {
	case was && node != pod.Spec.NodeName:
		l.odd("pod %s was bound to %s and is now bound to %q", pod.Name, node, pod.Spec.NodeName)
	case !was && pod.Spec.NodeName != "":
		l.bound[pod.UID] = pod.Spec.NodeName
		l.hold(pod)
		if user, ok := binders[pod.Spec.SchedulerName]; ok && pod.Annotations[byLoad] != decidedFor(pod, user) {
			l.odd("pod %s is bound with %q of the policy, but should have %q", pod.Name, pod.Annotations[byLoad], decidedFor(pod, user))
		}
	}
}

// gone removes a deleted pod.
func (l *ledger) gone(uid types.UID) {
	delete(l.pods, uid)
	for _, holders := range l.devices {
		delete(holders, uid)
	}
}

// hold adds the devices of a bound pod.
func (l *ledger) hold(pod *corev1.Pod) {
	for device, share := range devicesOf(pod) {
		if l.devices[device] == nil {
			l.devices[device] = map[types.UID]float64{}
		}
		l.devices[device][pod.UID] = share
		sum, holders := 0.0, []string{}
		for uid, s := range l.devices[device] {
			sum += s
			holders = append(holders, l.pods[uid].Name)
		}
		if sum > 1 {
			l.odd("device %s is held by %v at the same time", device, holders)
		}
	}
}

// devicesOf returns the devices in the annotations of the bound pod.
func devicesOf(pod *corev1.Pod) map[string]float64 {
	found := map[string]float64{}
	if value := pod.Annotations["device.prebind.dev/gpu"]; value != "" {
		for entry := range strings.SplitSeq(value, ",") {
			id, share, part := strings.Cut(entry, ":")
			size := 1.0
			if part {
				_, _ = fmt.Sscan(share, &size)
			}
			found[pod.Spec.NodeName+"/"+id] = size
		}
	}
	return found
}

// claim adds a version of a claim. No client of this test removes a selected node.
func (l *ledger) claim(before, now client.Object) {
	if before == nil || now == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	was, is := before.GetAnnotations()[volume.AnnSelectedNode], now.GetAnnotations()[volume.AnnSelectedNode]
	if was != "" && was != is {
		l.odd("the selected node of the claim %s changed from %s to %q; managers: %v", now.GetName(), was, is, managers(now))
	}
}

func managers(o client.Object) []string {
	var names []string
	for _, m := range o.GetManagedFields() {
		names = append(names, m.Manager)
	}
	return names
}

// resourceClaim adds a version of a ResourceClaim.
func (l *ledger) resourceClaim(before, now client.Object) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, device := range given(before) {
		delete(l.given, device)
	}
	claim, ok := now.(*resourcev1.ResourceClaim)
	if !ok {
		return
	}
	for _, device := range given(claim) {
		if holder := l.given[device]; holder != "" && holder != claim.UID {
			l.odd("the device %s is allocated to the claim %s and to the claim with the UID %s", device, claim.Name, holder)
		}
		l.given[device] = claim.UID
	}
}

// given returns the devices of a ResourceClaim.
func given(o client.Object) []string {
	claim, ok := o.(*resourcev1.ResourceClaim)
	if !ok || claim.Status.Allocation == nil {
		return nil
	}
	var names []string
	for _, r := range claim.Status.Allocation.Devices.Results {
		names = append(names, r.Driver+"/"+r.Pool+"/"+r.Device)
	}
	return names
}

// living returns the existing pods, the oldest first.
func (l *ledger) living() []*corev1.Pod {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.line = slices.DeleteFunc(l.line, func(uid types.UID) bool { return l.pods[uid] == nil })
	all := make([]*corev1.Pod, 0, len(l.line))
	for _, uid := range l.line {
		all = append(all, l.pods[uid])
	}
	return all
}

func (l *ledger) everBound() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.bound)
}

// boundTo returns the node to which the pod was bound.
func (l *ledger) boundTo(uid types.UID) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bound[uid]
}

func (l *ledger) wrongs() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	wrong, _ := l.locks.wrongs()
	return append(slices.Clone(l.wrong), wrong...)
}

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
