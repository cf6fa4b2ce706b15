// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// Report is the state of a replica's lease.
type Report struct {
	// ID of the replica.
	ID string
	// Leader says that the replica holds the lease of the leader.
	Leader bool
	// Status is what Options.Status returned at the last renewal; empty if nothing.
	Status string
	// Renewed is the time of the last renewal by the API server's clock.
	Renewed time.Time
	// Ahead is by how much the replica's clock was ahead of the API server's clock then, to
	// within some seconds; negative if it was behind.
	Ahead time.Duration
}

// Reports returns those of all replicas that have a lease, by ID.
func Reports(ctx context.Context, client kubernetes.Interface, namespace string) ([]Report, error) {
	list, err := client.CoordinationV1().Leases(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing leases in %s: %w", namespace, err)
	}
	leader := ""
	var all []Report
	for i := range list.Items {
		switch l := &list.Items[i]; {
		case l.Labels[label] != "":
			all = append(all, reportOf(l))
		case l.Name == leaderLease:
			leader = ptr.Deref(l.Spec.HolderIdentity, "")
		}
	}
	for i := range all {
		all[i].Leader = all[i].ID == leader
	}
	slices.SortFunc(all, func(a, b Report) int { return strings.Compare(a.ID, b.ID) })
	return all, nil
}

// reportOf reads a lease. The managed fields hold the time of the last write by the API
// server's clock, in full seconds.
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
