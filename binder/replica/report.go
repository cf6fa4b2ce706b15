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
)

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
