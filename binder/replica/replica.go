// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package replica lets the replicas of Prebind know of each other: each keeps a
// Lease, by which the others see that it lives.
package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// duration is how long a replica is taken for living without a renewal.
	duration = 30 * time.Second
	// renewal is how often it renews.
	renewal = 10 * time.Second
	// label marks the leases of replicas.
	label = "prebind.dev/replica"
	// statusAnnotation holds Options.Status.
	statusAnnotation = "prebind.dev/status"
	// prefix begins their names.
	prefix = "prebind-replica-"
)

// NewID returns an identifier for this process that no other has.
func NewID() string { return rand.String(8) }

// Options of the replicas. All fields are required but Status.
type Options struct {
	// ID of this process; see NewID.
	ID     string
	Client kubernetes.Interface
	// Namespace of the leases.
	Namespace string
	Clock     clock.Clock
	// Status returns what people should know of this process; it is put on the lease,
	// with each renewal. It may be nil. An error is logged, and leaves the old one.
	Status func() (string, error)
}

// Replicas keeps this process's lease and sees those of the others. Living is for
// one goroutine at a time.
type Replicas struct {
	o Options
	// seen is when, by this process's own clock, each lease was last seen to change:
	// the clocks of others may differ.
	seen map[string]observation
	// looked is when they were last seen at all.
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
	return &Replicas{o: o, seen: map[string]observation{}}, nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: every replica
// keeps its own lease.
func (*Replicas) NeedLeaderElection() bool { return false }

// Start keeps the lease until the context ends, and then gives it back.
func (r *Replicas) Start(ctx context.Context) error {
	mark := func(l *coordinationv1.Lease) error {
		metav1.SetMetaDataLabel(&l.ObjectMeta, label, r.o.ID)
		r.report(ctx, l)
		return nil
	}
	keeper := lease.NewController(r.o.Clock, r.o.Client, r.o.ID, int32(duration/time.Second), nil, renewal,
		prefix+r.o.ID, r.o.Namespace, mark)
	keeper.Run(ctx)
	keeper.Stop()
	return nil
}

// report puts the status on the lease.
func (r *Replicas) report(ctx context.Context, l *coordinationv1.Lease) {
	if r.o.Status == nil {
		return
	}
	status, err := r.o.Status()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not tell the status of this replica")
		return
	}
	metav1.SetMetaDataAnnotation(&l.ObjectMeta, statusAnnotation, status)
}

// Report is what a replica tells of itself.
type Report struct {
	// ID of the replica.
	ID string
	// Status is what Options.Status returned at the last renewal; empty if nothing.
	Status string
	// Renewed is when that was, by the API server's clock.
	Renewed time.Time
	// Ahead is by how much the replica's own clock was ahead of the API server's then,
	// to within some seconds; negative is behind.
	Ahead time.Duration
}

// Reports returns those of all replicas whose leases there are, by ID.
func Reports(ctx context.Context, client kubernetes.Interface, namespace string) ([]Report, error) {
	list, err := client.CoordinationV1().Leases(namespace).List(ctx, metav1.ListOptions{LabelSelector: label})
	if err != nil {
		return nil, fmt.Errorf("listing the leases of replicas in %s: %w", namespace, err)
	}
	all := make([]Report, 0, len(list.Items))
	for i := range list.Items {
		all = append(all, reportOf(&list.Items[i]))
	}
	slices.SortFunc(all, func(a, b Report) int { return strings.Compare(a.ID, b.ID) })
	return all, nil
}

// reportOf reads a lease. The API server notes in its managed fields when it was
// written, in full seconds.
func reportOf(l *coordinationv1.Lease) Report {
	report := Report{ID: l.Labels[label], Status: l.Annotations[statusAnnotation]}
	if l.Spec.RenewTime == nil {
		return report
	}
	var written time.Time
	for _, m := range l.ManagedFields {
		if m.Time != nil && m.Time.After(written) {
			written = m.Time.Time
		}
	}
	report.Renewed = l.Spec.RenewTime.Time
	if !written.IsZero() {
		report.Renewed, report.Ahead = written, report.Renewed.Sub(written)
	}
	return report
}

// Living returns the replicas whose lease is kept. It removes leases that are not
// kept any more. A lease that is seen for the first time counts as kept.
func (r *Replicas) Living(ctx context.Context) (map[string]bool, error) {
	leases := r.o.Client.CoordinationV1().Leases(r.o.Namespace)
	list, err := leases.List(ctx, metav1.ListOptions{LabelSelector: label})
	if err != nil {
		return nil, fmt.Errorf("listing the leases of replicas in %s: %w", r.o.Namespace, err)
	}
	now := r.o.Clock.Now()
	if now.Sub(r.looked) > duration/2 {
		// It was this process that did not see anything: nobody is to blame.
		r.seen = map[string]observation{}
	}
	r.looked = now
	living := map[string]bool{}
	seen := map[string]observation{}
	for i := range list.Items {
		l := &list.Items[i]
		last, known := r.seen[l.Name]
		if !known || last.version != l.ResourceVersion {
			last = observation{version: l.ResourceVersion, at: now}
		}
		if now.Sub(last.at) > duration {
			// Only if nobody has renewed it since.
			err := leases.Delete(ctx, l.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &l.ResourceVersion}})
			switch {
			case err == nil, apierrors.IsNotFound(err):
				continue
			case apierrors.IsConflict(err):
				// It has just been renewed.
				last.at = now
			default:
				klog.FromContext(ctx).Error(err, "Could not remove the lease of an ended replica", "lease", klog.KObj(l))
			}
		}
		seen[l.Name] = last
		if now.Sub(last.at) <= duration {
			living[l.Labels[label]] = true
		}
	}
	r.seen = seen
	return living, nil
}
