// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

const (
	// directed is the owner of directed pods in one run of directedRuns.
	directed     = "web-0"
	directedRuns = 3
	// quiet is the node of directed pods. It has no maintenance.
	quiet = "node-d"
	// slow begins the names of their claims.
	slow = "slow-"
)

// direct owns directed pods: their binds become ready when the leader would roll them back if it could. Random faults do not reach this time.
// The oracle judges these binds like all others.
func (w *world) direct() {
	d := w.random("direct")
	w.putNode(quiet, quiet+"-uid")
	for n := 1; w.stormy(); w.pause(d.between(time.Second, 10*time.Second)) {
		followers := slices.DeleteFunc(w.living(), func(p *process) bool { return p.isCut() || p.Leads() })
		if len(followers) > 0 {
			p := followers[d.below(len(followers))]
			w.follower.Store(p)
			w.waitLong(d, p, n)
			n++
			w.follower.Store(nil)
			w.removePod(directed)
		}
	}
	w.createPod(directed, 0, d, false)
}

// waitLong lets one bind wait in the replica. After its first writes, the replica is suspended, or is called rarely, or loses its lease.
func (w *world) waitLong(d *dice, p *process, n int) {
	over, end := context.WithTimeout(p.killed, 3*time.Minute)
	defer end()
	claim := gen.Claim(fmt.Sprintf("%s%d", slow, n))
	pod := gen.Pod(directed, gen.UID(types.UID(fmt.Sprintf("%s-%d", directed, n))), gen.UsesClaim(claim.Name))
	w.executing.Lock()
	w.createClaim(claim.Name)
	w.mu.Lock()
	w.created[pod.UID] = time.Now()
	w.mu.Unlock()
	w.api.Put(pod)
	w.executing.Unlock()
	w.note("pod %s is created, and waits in %s", pod.UID, p.id)
	binding := gen.Binding(pod, quiet, gen.UID(pod.UID))
	metav1.SetMetaDataAnnotation(&binding.ObjectMeta, gpu, "GPU-0")
	// insist posts the Binding to the replica until the function returns true.
	insist := func(pause time.Duration, ended func() bool) {
		for !ended() {
			w.call(d, p, pod, binding, "scheduler-0")
			if !p.sleep(over, d.between(0, pause)) {
				return
			}
		}
	}
	written := func() bool { return w.nodeOf(pod) == quiet }
	gone := func() bool {
		now, ok := fakeapi.Get(w.api, pod)
		return !ok || now.Spec.NodeName != ""
	}
	ready := func(from, to time.Duration) {
		for !written() {
			if !p.sleep(over, 100*time.Millisecond) {
				break
			}
		}
		p.sleep(over, d.between(from, to))
		if claim, ok := fakeapi.Get(w.api, claim); ok {
			w.fill(claim, quiet)
		}
	}
	switch d.below(3) {
	case 0: // It does not notice how late it is.
		insist(time.Second, written)
		ready(0, time.Second) // No call is in progress.
		p.sleep(over, time.Second)
		w.actors.Go(func() { p.suspend(d.between(95*time.Second, 120*time.Second)) })
		p.sleep(over, time.Millisecond)
		insist(time.Second, gone)
	case 1: // Its marks are old, and it still runs.
		w.actors.Go(func() { ready(20*time.Second, 70*time.Second) })
		insist(40*time.Second, gone)
	case 2: // Its calls go on.
		w.actors.Go(func() {
			w.actors.Go(func() { p.cutLease(d.between(100*time.Second, 130*time.Second)) })
			ready(60*time.Second, 110*time.Second)
		})
		insist(2*time.Second, gone)
	}
}
