// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package replica keeps the Lease of this replica, with its status, observes the Leases of
// the other replicas, and elects a leader.
package replica

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/recovery"
)

const (
	// duration is how long a replica counts as alive without a renewal.
	duration = 30 * time.Second
	// renewal is the pause after a renewal, and renewAgain the one after a renewal
	// that failed.
	renewal    = 10 * time.Second
	renewAgain = 2 * time.Second
	// trusted is how long after the start of its last renewal a replica may allow binds
	// that rely on its writes. Another replica sees it dead after duration, and rolls
	// its writes back after SweepGrace more. A bind that was allowed is over by then.
	trusted = duration + recovery.Grace - framework.BindSettles
	// goodbyeTakes bounds the removal of the lease at the end.
	goodbyeTakes = 10 * time.Second
	// label marks the leases of replicas.
	label = "prebind.dev/replica"
	// statusAnnotation holds Options.Status.
	statusAnnotation = "prebind.dev/status"
	// prefix begins their names.
	prefix = "prebind-replica-"
)

// Replicas keep leases and elect a leader in Prebind's own namespace.
//
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,namespace=prebind-system,verbs=get;list;create;update;delete

// NewID returns an identifier for this process that no other has.
func NewID() string { return rand.String(8) }

// Options of the replicas. All fields are required but Status.
type Options struct {
	// ID of this process; see NewID.
	ID string
	// Client is for the leases. It must give a request up well before a lease expires.
	Client kubernetes.Interface
	// Namespace of the leases.
	Namespace string
	Clock     clock.Clock
	// Status returns text about this process, which each renewal puts on the lease. It
	// may be nil. A renewal that fails with the text, for whatever reason, is repeated
	// at once without it.
	Status func() (string, error)
}

// Replicas keeps the lease of this process and observes those of the others. Term and
// Living are safe for concurrent use.
type Replicas struct {
	o Options
	// latest is the lease as it was last read or written, or nil. Only Start uses it.
	latest *coordinationv1.Lease

	mu sync.Mutex
	// renewed is when the last renewal that succeeded began, and term the number of
	// the current term; see Term. Both are zero before the first renewal.
	renewed time.Time
	term    int64
	// lost says that the next renewal begins a new term.
	lost bool

	observer observer
}

// observer holds what was seen of the leases.
type observer struct {
	mu sync.Mutex
	// seen is when, by the clock of this process, each lease was last seen to change:
	// the clocks of others may differ.
	seen map[string]observation
	// living are the replicas of the last look, and looked is when that was.
	living map[string]bool
	looked time.Time
}

type observation struct {
	version string
	at      time.Time
}

// New checks the options. It starts nothing.
func New(o Options) (*Replicas, error) {
	if o.ID == "" || o.Client == nil || o.Namespace == "" || o.Clock == nil {
		return nil, errors.New("replica: ID, Client, Namespace and Clock are required")
	}
	return &Replicas{o: o, lost: true}, nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: every replica
// keeps its own lease.
func (*Replicas) NeedLeaderElection() bool { return false }

// Start keeps the lease until the context ends, and then removes it.
func (r *Replicas) Start(ctx context.Context) error {
	for {
		pause := renewal
		if err := r.renew(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Could not renew the lease of this replica, will try again", "lease", klog.KRef(r.o.Namespace, r.name()))
			pause = renewAgain
		}
		timer := r.o.Clock.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return r.leave(ctx)
		case <-timer.C():
		}
	}
}

// Term returns the number of the current term, and whether this replica holds it.
// While it holds a term, no other replica rolls back a write that was made in this
// term before a bind that is allowed now is over. A term ends when the lease is not
// renewed in time, or when somebody else removes it: then other replicas may roll
// back the writes of this one. The next renewal begins a new term.
//
// Only times that this process measures count, and the renewal counts from its start.
func (r *Replicas) Term() (term int64, held bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.term, !r.renewed.IsZero() && r.o.Clock.Since(r.renewed) <= trusted
}

// Held returns why this replica does not hold a term, or nil.
func (r *Replicas) Held() error {
	if _, held := r.Term(); held {
		return nil
	}
	return fmt.Errorf("this replica could not renew its lease %s/%s for more than %s: see its log for the reason", r.o.Namespace, r.name(), trusted)
}

func (r *Replicas) name() string { return prefix + r.o.ID }

// renew renews the lease, if need be without the status.
func (r *Replicas) renew(ctx context.Context) error {
	status := r.status(ctx)
	err := r.write(ctx, status)
	if err == nil || status == "" || ctx.Err() != nil {
		return err
	}
	klog.FromContext(ctx).Error(err, "Could not renew the lease of this replica with its status, will try without", "bytes", len(status))
	return r.write(ctx, "")
}

func (r *Replicas) status(ctx context.Context) string {
	if r.o.Status == nil {
		return ""
	}
	status, err := r.o.Status()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not collect the status of this replica")
		return ""
	}
	return status
}

// write creates or updates the lease.
func (r *Replicas) write(ctx context.Context, status string) error {
	leases := r.o.Client.CoordinationV1().Leases(r.o.Namespace)
	var err error
	// The second time it is based on what the API server has, the third is for a lease
	// that was removed in between.
	for range 3 {
		began := r.o.Clock.Now()
		next := r.next(status, began)
		var written *coordinationv1.Lease
		if r.latest == nil {
			written, err = leases.Create(ctx, next, metav1.CreateOptions{})
		} else {
			written, err = leases.Update(ctx, next, metav1.UpdateOptions{})
		}
		switch {
		case err == nil:
			r.latest = written
			r.succeeded(began)
			return nil
		case apierrors.IsNotFound(err) && r.latest != nil:
			r.removed()
		case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
			var found *coordinationv1.Lease
			if found, err = leases.Get(ctx, r.name(), metav1.GetOptions{}); apierrors.IsNotFound(err) {
				r.removed()
			} else if err != nil {
				return err
			} else {
				r.latest = found
			}
		default:
			return err
		}
	}
	return err
}

// next is the lease to be written.
func (r *Replicas) next(status string, now time.Time) *coordinationv1.Lease {
	next := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: r.o.Namespace, Name: r.name()}}
	if r.latest != nil {
		next = r.latest.DeepCopy()
	}
	metav1.SetMetaDataLabel(&next.ObjectMeta, label, r.o.ID)
	delete(next.Annotations, statusAnnotation)
	if status != "" {
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, statusAnnotation, status)
	}
	next.Spec.HolderIdentity = &r.o.ID
	next.Spec.LeaseDurationSeconds = new(int32(duration / time.Second))
	next.Spec.RenewTime = new(metav1.NewMicroTime(now))
	return next
}

// succeeded notes a renewal, by when it began.
func (r *Replicas) succeeded(began time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost || r.o.Clock.Since(r.renewed) > trusted {
		r.term++
	}
	r.renewed, r.lost = began, false
}

// removed notes that somebody else has removed the lease.
func (r *Replicas) removed() {
	r.latest = nil
	r.mu.Lock()
	defer r.mu.Unlock()
	r.renewed, r.lost = time.Time{}, true
}

// leave ends the term and removes the lease: the others need not wait.
func (r *Replicas) leave(ctx context.Context) error {
	r.removed()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbyeTakes)
	defer cancel()
	err := r.o.Client.CoordinationV1().Leases(r.o.Namespace).Delete(ctx, r.name(), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		klog.FromContext(ctx).Error(err, "Could not remove the lease of this replica", "lease", klog.KRef(r.o.Namespace, r.name()))
	}
	return nil
}
