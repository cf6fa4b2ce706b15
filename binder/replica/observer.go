// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"context"
	"fmt"
	"maps"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

const (
	// observeEvery is the pause between two reads of the leases.
	observeEvery = 5 * time.Second
	// blind is the time without a read after which old observations do not count: the API
	// server was unavailable, and no replica could renew its lease.
	blind = 3 * observeEvery
)

// Observe reads the leases of all replicas every few seconds until the context ends. It removes
// leases that are not renewed.
func (r *Replicas) Observe(ctx context.Context) {
	r.repeat(ctx, func() error {
		r.observer.mu.Lock()
		dead, err := r.look(ctx)
		r.observer.mu.Unlock()
		if err == nil {
			err = r.remove(ctx, dead)
		}
		return err
	})
}

// Count returns the number of live replicas, including this one, by the last read of their leases. It
// does not block. The first call begins the observation of the leases in Start, every few
// seconds. Count returns 0 until the first read.
func (r *Replicas) Count() int {
	r.beginsCount.Do(func() { close(r.counting) })
	return int(r.count.Load())
}

// follow reads the leases for Count until the context ends, unless Observe reads them.
func (r *Replicas) follow(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-r.counting:
	}
	r.repeat(ctx, func() error {
		r.observer.mu.Lock()
		defer r.observer.mu.Unlock()
		if !r.observer.looked.IsZero() && r.o.Clock.Since(r.observer.looked) < observeEvery {
			return nil
		}
		_, err := r.look(ctx)
		return err
	})
}

// repeat calls f every few seconds until the context ends.
func (r *Replicas) repeat(ctx context.Context, f func() error) {
	for {
		err := f()
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Could not observe the leases of the replicas, will retry")
		}
		timer := r.o.Clock.NewTimer(observeEvery)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		}
	}
}

// Living returns the replicas that renew their leases, by the last read of Observe. It reads
// them itself if that is too old. A new lease counts as renewed. The caller owns the map.
func (r *Replicas) Living(ctx context.Context) (map[string]bool, error) {
	r.observer.mu.Lock()
	defer r.observer.mu.Unlock()
	if r.observer.looked.IsZero() || r.o.Clock.Since(r.observer.looked) > 2*observeEvery {
		if _, err := r.look(ctx); err != nil {
			return nil, err
		}
	}
	return maps.Clone(r.observer.living), nil
}

// look lists the leases and returns those that are not renewed. It must be called with
// observer.mu held.
func (r *Replicas) look(ctx context.Context) (dead []coordinationv1.Lease, err error) {
	began := r.o.Clock.Now()
	list, err := r.o.Client.CoordinationV1().Leases(r.o.Namespace).List(ctx, metav1.ListOptions{LabelSelector: label})
	if err != nil {
		return nil, fmt.Errorf("listing the leases of replicas in %s: %w", r.o.Namespace, err)
	}
	o, now := &r.observer, r.o.Clock.Now()
	if began.Sub(o.looked) > blind {
		o.seen = nil
	}
	seen, living := map[string]observation{}, map[string]bool{}
	for _, l := range list.Items {
		last, known := o.seen[l.Name]
		if !known || last.version != l.ResourceVersion {
			last = observation{version: l.ResourceVersion, at: now}
		}
		seen[l.Name] = last
		// The lease may have been renewed since the list began, but not before.
		if began.Sub(last.at) <= duration {
			living[l.Labels[label]] = true
		} else if l.Labels[label] != r.o.ID {
			dead = append(dead, l)
		}
	}
	o.seen, o.living, o.looked = seen, living, now
	count := len(living)
	if !living[r.o.ID] {
		count++ // The list is older than the lease of this replica.
	}
	r.count.Store(int32(count)) //nolint:gosec // A cluster has few replicas.
	return dead, nil
}

// remove removes the leases that were not renewed since they were listed. It stops at the first
// error, because the next read must not be late.
func (r *Replicas) remove(ctx context.Context, dead []coordinationv1.Lease) error {
	for _, l := range dead {
		err := r.o.Client.CoordinationV1().Leases(l.Namespace).Delete(ctx, l.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{ResourceVersion: &l.ResourceVersion},
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("removing the lease %s of a replica that is gone: %w", l.Name, err)
		}
	}
	return nil
}
