// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"io"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// cutLease keeps the replica from renewing its lease. The API server still executes the binds that it allows, often late.
func (p *process) cutLease(d time.Duration) {
	if p.cut.Swap(true) {
		return
	}
	p.w.note("%s: the lease is cut for %s", p.id, d)
	p.sleep(p.w.storming, d)
	p.cut.Store(false)
}

// isCut returns whether the process cannot renew its lease.
func (p *process) isCut() bool { return p.cut.Load() || p.renewsLater() }

// cuttable returns the client of the leases. Requests fail while cut is set, during a suspension, and after the end of the process. They cannot
// wait, because fake.Clientset holds a mutex.
func (p *process) cuttable() kubernetes.Interface {
	c := &fake.Clientset{}
	c.AddReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if p.dead() || p.renewsLater() || p.cut.Load() && a.GetVerb() != "list" {
			return true, nil, io.ErrUnexpectedEOF
		}
		o, err := p.w.leases.Invokes(a, nil)
		return true, o, err
	})
	return c
}
