// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/controller-runtime/pkg/client"

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

func newLedger(t *testing.T, w *world) *ledger {
	t.Helper()
	l := &ledger{
		pods: map[types.UID]*corev1.Pod{}, bound: map[types.UID]string{}, devices: map[string]map[types.UID]float64{}, given: map[string]types.UID{},
		locks: locks{holder: map[string][]holding{}},
	}
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
