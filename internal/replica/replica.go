// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package replica keeps the Lease of this replica, with its status, and observes the Leases of
// the other replicas. One of them leads.
package replica

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/work"
)

const (
	// duration is how long a replica counts as alive without a renewal.
	duration = 30 * time.Second
	// renewal is the pause after a renewal, and renewAgain the pause after a failed one.
	renewal    = 10 * time.Second
	renewAgain = 2 * time.Second
	// trusted is how long after the start of its last renewal a replica may allow binds
	// that rely on its writes. Another replica considers it dead after duration, and rolls
	// back its writes after work.Grace more. No allowed bind is open then.
	trusted = duration + work.Grace - framework.BindSettles
	// RequestTakes is the time limit for a request about leases. A renewal can be repeated often before the lease ends.
	RequestTakes = 5 * time.Second
	// goodbyeTakes limits the removal of the lease at shutdown.
	goodbyeTakes = 10 * time.Second
	// label marks the leases of replicas.
	label = "prebind.dev/replica"
	// statusAnnotation holds Options.Status.
	statusAnnotation = "prebind.dev/status"
	// candidate is the holder of the lease of a replica that can lead. That of a replica of 0.1 has its ID.
	candidate = "candidate"
	// prefix begins the names of the leases.
	prefix = "prebind-replica-"
)

// Replicas keep leases in Prebind's own namespace. Those of 0.1 need get and update, and run beside others during an upgrade.
//
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,namespace=prebind-system,verbs=get;list;create;update;patch;delete

// NewID returns a unique identifier for this process.
func NewID() string { return rand.String(8) }

// Options of Replicas. All fields are required except Elect.
type Options struct {
	// ID of this process; see NewID.
	ID string
	// Client reads and writes the leases. Its request timeout must be well below the duration
	// of a lease; see RequestTakes.
	Client kubernetes.Interface
	// Namespace of the leases.
	Namespace string
	Clock     clock.Clock
	// Elect says that only one of the replicas leads. Otherwise, every replica leads.
	Elect bool
	// Synced says that this process can lead, because its caches have all objects. Otherwise, a replica that lacks a permission could lead,
	// and would never sweep.
	Synced func() bool
	// Status returns text about this process, which each renewal writes to the lease.
	Status func() (string, error)
}

// Replicas keeps the lease of this process, and observes those of the others. Its methods other than Start are safe for concurrent use.
type Replicas struct {
	o Options

	mu sync.Mutex
	// renewed is when the last successful renewal began, and term the number of the current
	// term; see Term. Both are zero before the first renewal.
	renewed time.Time
	term    int64
	// lost is set if the next renewal begins a new term.
	lost bool
	// reached is when the last renewal began that the API server answered, also with an error, and forbidden whether that answer was Forbidden.
	reached   time.Time
	forbidden bool

	// observer guards the observations of the leases.
	observer sync.Mutex
	// seen is when each lease last changed, by the clock of this process. Clocks of other
	// replicas may differ.
	seen map[string]observation
	// living are the live replicas of the last look, leader is that with the smallest ID that can lead, or "", and looked is its time.
	living map[string]bool
	leader string
	looked time.Time
}

type observation struct {
	version string
	at      time.Time
}

// New returns the Replicas. It starts nothing.
func New(o Options) *Replicas { return &Replicas{o: o, lost: true} }

// Start keeps the lease until the context ends, and then removes it. It observes the leases of all replicas.
func (r *Replicas) Start(ctx context.Context) error {
	log := klog.FromContext(ctx)
	var observing sync.WaitGroup
	observing.Go(func() {
		r.repeat(ctx, func() time.Duration {
			if err := r.observe(ctx); err != nil && ctx.Err() == nil {
				log.Error(err, "Could not observe the leases of the replicas, will retry")
			}
			return observeEvery
		})
	})
	r.repeat(ctx, func() time.Duration {
		synced := r.o.Synced()
		err := r.renew(ctx)
		if ctx.Err() != nil || err == nil && synced {
			return renewal
		}
		if err == nil { // The replica can lead soon.
			return renewAgain
		}
		log.Error(err, "Could not renew the lease of this replica, will retry", "lease", klog.KRef(r.o.Namespace, r.name()))
		return renewAgain
	})
	observing.Wait()
	r.leave(ctx)
	return nil
}

// repeat calls f with the pauses that f returns, until the context ends.
func (r *Replicas) repeat(ctx context.Context, f func() time.Duration) {
	for ctx.Err() == nil {
		timer := r.o.Clock.NewTimer(f())
		select {
		case <-ctx.Done():
		case <-timer.C():
		}
		timer.Stop()
	}
}

// Term returns the number of the current term, and whether this replica holds it.
// While it holds a term, no other replica rolls back a write of this term before a bind that is
// allowed now has settled. A term ends if the lease is not renewed in time, or if another client
// removes it. Other replicas may then roll back the writes of this one. The next renewal begins a
// new term. Term uses only the clocks of this machine, and a renewal counts from its start.
func (r *Replicas) Term() (term int64, held bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.term, !r.renewed.IsZero() && r.sinceRenewal() <= trusted
}

// sinceRenewal returns the time since the last successful renewal. It must be called with mu held. While a machine is
// suspended, the monotonic clock stands, and only the wall clock shows the time that the other replicas count.
func (r *Replicas) sinceRenewal() time.Duration {
	wall := r.o.Clock.Now().Round(0).Sub(r.renewed.Round(0))
	return max(r.o.Clock.Since(r.renewed), wall)
}

// Held returns an error if the API server has not answered a renewal for a while, or forbids the first one, because a role is missing. Other
// renewals that the API server rejects, and a step of the wall clock, do not count: calls without writes need no term, and if another webhook
// rejects the renewals of all replicas, no pod could be bound, also not those of that webhook.
func (r *Replicas) Held() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.term == 0 && (r.reached.IsZero() || r.forbidden):
		return fmt.Errorf("this replica has not written its lease %s/%s yet: if this persists, its log contains the reason", r.o.Namespace, r.name())
	case r.o.Clock.Since(r.reached) <= trusted:
		return nil
	}
	return fmt.Errorf("the API server has not answered the renewal of lease %s/%s for more than %s: see the log of this replica", r.o.Namespace, r.name(), trusted)
}

func (r *Replicas) name() string { return prefix + r.o.ID }

func (r *Replicas) status(ctx context.Context) string {
	status, err := r.o.Status()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not collect the status of this replica")
		return ""
	}
	return status
}

// renew renews the lease with the status, or creates it. A patch without a resourceVersion never conflicts, and does not bring back a lease that was
// removed.
func (r *Replicas) renew(ctx context.Context) error {
	status, began := r.status(ctx), r.o.Clock.Now()
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: r.name(), Labels: map[string]string{label: r.o.ID}, Annotations: map[string]string{statusAnnotation: status}},
		Spec:       coordinationv1.LeaseSpec{LeaseDurationSeconds: new(int32(duration / time.Second)), RenewTime: new(metav1.NewMicroTime(began))},
	}
	if r.o.Synced() {
		lease.Spec.HolderIdentity = new(candidate)
	}
	patch, err := json.Marshal(lease)
	if err != nil {
		return err
	}
	leases := r.o.Client.CoordinationV1().Leases(r.o.Namespace)
	_, err = leases.Patch(ctx, lease.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		r.removed()
		_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
	}
	r.record(began, err)
	return err
}

// record records a renewal by its start.
func (r *Replicas) record(began time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// An answer to an invalid token does not count: this replica cannot read either.
	if answer := apierrors.APIStatus(nil); err == nil || errors.As(err, &answer) && !apierrors.IsUnauthorized(err) {
		r.reached, r.forbidden = began, apierrors.IsForbidden(err)
	}
	if err != nil {
		return
	}
	if r.lost || r.sinceRenewal() > trusted {
		r.term++
	}
	r.renewed, r.lost = began, false
}

// removed records that another client removed the lease.
func (r *Replicas) removed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.renewed, r.lost = time.Time{}, true
}

// leave ends the term and removes the lease, so that other replicas need not wait.
func (r *Replicas) leave(ctx context.Context) {
	r.removed()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbyeTakes)
	defer cancel()
	err := r.o.Client.CoordinationV1().Leases(r.o.Namespace).Delete(ctx, r.name(), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		klog.FromContext(ctx).Error(err, "Could not remove the lease of this replica", "lease", klog.KRef(r.o.Namespace, r.name()))
	}
}
