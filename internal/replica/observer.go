// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const (
	// observeEvery is the pause between two reads of the leases.
	observeEvery = 5 * time.Second
	// blind is the time without a read after which old observations do not count: the API
	// server was unavailable, and no replica could renew its lease.
	blind = 3 * observeEvery
)

// Count returns the number of live replicas, including this one, by the last read of their leases, or 0 before the first read.
func (r *Replicas) Count() int {
	r.observer.Lock()
	defer r.observer.Unlock()
	switch {
	case r.looked.IsZero():
		return 0
	case r.living[r.o.ID]:
		return len(r.living)
	default:
		return len(r.living) + 1 // The list is older than the lease of this replica.
	}
}

// Living returns the replicas that renew their leases, by the last read, or nil if that is too old. A new lease counts
// as renewed. The map is not changed.
func (r *Replicas) Living() map[string]bool {
	r.observer.Lock()
	defer r.observer.Unlock()
	if !r.fresh() {
		return nil
	}
	return r.living
}

// Leads returns whether this replica leads: it has the smallest ID of the live candidates, by the last read. Replicas of 0.1 are none, because
// they do not do the work of this leader. Two replicas can lead for some seconds after one starts, and none for about 35 s after one was
// killed. So what the leader does is idempotent, and can wait.
func (r *Replicas) Leads() bool {
	r.observer.Lock()
	defer r.observer.Unlock()
	return !r.o.Elect || r.fresh() && r.leader == r.o.ID
}

// fresh returns whether the last read is recent. It must be called with observer held.
func (r *Replicas) fresh() bool {
	return !r.looked.IsZero() && r.o.Clock.Since(r.looked) <= 2*observeEvery
}

// observe reads the leases. The leader removes those that are not renewed.
func (r *Replicas) observe(ctx context.Context) error {
	began := r.o.Clock.Now()
	list, err := r.o.Client.CoordinationV1().Leases(r.o.Namespace).List(ctx, metav1.ListOptions{LabelSelector: label})
	if err != nil {
		return fmt.Errorf("listing the leases of replicas in %s: %w", r.o.Namespace, err)
	}
	dead := r.look(list.Items, began)
	if !r.Leads() {
		return nil
	}
	for _, l := range dead { // The next read must not be late, so the first error ends the removal.
		err := r.o.Client.CoordinationV1().Leases(l.Namespace).Delete(ctx, l.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{ResourceVersion: &l.ResourceVersion},
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("removing the lease %s of a replica that is gone: %w", l.Name, err)
		}
	}
	return nil
}

// look notes the leases of a list that began at the time, and returns those that are not renewed.
func (r *Replicas) look(leases []coordinationv1.Lease, began time.Time) (dead []coordinationv1.Lease) {
	r.observer.Lock()
	defer r.observer.Unlock()
	now := r.o.Clock.Now()
	if began.Sub(r.looked) > blind {
		r.seen = nil
	}
	seen, living, leader := map[string]observation{}, map[string]bool{}, ""
	for _, l := range leases {
		last, known := r.seen[l.Name]
		if !known || last.version != l.ResourceVersion {
			last = observation{version: l.ResourceVersion, at: now}
		}
		seen[l.Name] = last
		// The lease may have been renewed since the list began, but not before.
		id := l.Labels[label]
		if began.Sub(last.at) <= duration {
			living[id] = true
			if ptr.Deref(l.Spec.HolderIdentity, "") == candidate && (leader == "" || id < leader) {
				leader = id
			}
		} else if id != r.o.ID {
			dead = append(dead, l)
		}
	}
	r.seen, r.living, r.leader, r.looked = seen, living, leader, now
	return dead
}
