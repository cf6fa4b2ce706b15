// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/prebind/prebind/internal/text"
	"github.com/prebind/prebind/internal/work"
)

const (
	// MaxStatus is the maximum size of an encoded Status in bytes. All annotations of a
	// Lease together may have 262,144 bytes, and a renewal with more is rejected.
	MaxStatus = 64 << 10
	// maxText bounds each text in a Status that has no limit of its own, in bytes.
	maxText = 512
	// clockTolerance is the smallest error of a replica's clock that a Status reports: a
	// write takes time, and the API server notes full seconds.
	clockTolerance = 5 * time.Second
)

// Status is what a replica reports about itself on its lease. Its JSON is stable.
type Status struct {
	// Replica is its ID. The IDs of its attempts begin with it.
	Replica string `json:"replica"`
	// Leader says that the replica leads; see Replicas.Leads.
	Leader bool `json:"leader,omitempty"`
	// Pod is empty without --pod-name.
	Pod     string `json:"pod,omitempty"`
	Version string `json:"version"`
	// Config is the hash of the configuration in force.
	Config string `json:"config"`
	Mode   string `json:"mode"`
	// Problem is why the replica is not ready; empty if it is.
	Problem string `json:"problem,omitempty"`
	// Lacks is why a ready replica decides from old objects: a lost permission or kind, or a watch that fails again and again.
	Lacks string `json:"lacks,omitempty"`
	// Attempts are the numbers of attempts in progress, by phase.
	Attempts map[string]int `json:"attempts"`
	Holds    int            `json:"holds"`
	MaxHolds int            `json:"maxHolds"`
	// InFlight are the attempts in progress, the oldest first. If there is no room for all,
	// namespaces take turns, and LeftOut is the number of those that are missing.
	InFlight []work.InFlight `json:"inFlight,omitempty"`
	LeftOut  int             `json:"leftOut,omitempty"`
	// Reported is the time of the report by the clock of the API server.
	Reported metav1.Time `json:"reported"`
	// ClockAhead is the error of the replica's clock if it is five seconds or more; negative
	// if the clock is behind. The times in the Status are corrected by it.
	ClockAhead metav1.Duration `json:"clockAhead,omitzero"`
}

// Encode returns the JSON of the status, with the problem shortened and as many of the
// attempts as fit into MaxStatus. The attempts are given oldest first.
func (s Status) Encode(all []work.InFlight) (string, error) {
	s.Problem, s.Lacks = text.Clip(s.Problem, maxText), text.Clip(s.Lacks, maxText)
	s.LeftOut = len(all) // The longest number that is possible.
	rest, err := json.Marshal(s)
	if err != nil {
		return "", err
	}
	room := MaxStatus - len(rest) - len(`,"inFlight":[]`)
	for _, f := range work.Interleave(all, func(f work.InFlight) string { return f.Namespace }) {
		f.WaitsFor = text.Clip(f.WaitsFor, maxText)
		encoded, err := json.Marshal(f)
		if err != nil {
			return "", err
		}
		if room -= len(encoded) + len(","); room < 0 {
			break
		}
		s.InFlight = append(s.InFlight, f)
	}
	s.LeftOut -= len(s.InFlight)
	slices.SortStableFunc(s.InFlight, func(a, b work.InFlight) int { return a.Since.Compare(b.Since.Time) })
	encoded, err := json.Marshal(s)
	return string(encoded), err
}

// Statuses returns the statuses of all replicas that have a lease, by ID.
func Statuses(ctx context.Context, client kubernetes.Interface, namespace string) ([]Status, error) {
	list, err := client.CoordinationV1().Leases(namespace).List(ctx, metav1.ListOptions{LabelSelector: label})
	if err != nil {
		return nil, fmt.Errorf("listing leases in %s: %w", namespace, err)
	}
	all := make([]Status, 0, len(list.Items))
	for i := range list.Items {
		all = append(all, statusOf(&list.Items[i]))
	}
	slices.SortFunc(all, func(a, b Status) int { return strings.Compare(a.Replica, b.Replica) })
	return all, nil
}

// statusOf returns the status on a lease. The managed fields hold the time of the last write by the API server's clock, in full
// seconds.
func statusOf(l *coordinationv1.Lease) Status {
	s := Status{Replica: l.Labels[label]}
	if err := json.Unmarshal([]byte(l.Annotations[statusAnnotation]), &s); err != nil {
		s.Problem = "its lease has no valid status: it may run another version"
	}
	renewed := ptr.Deref(l.Spec.RenewTime, metav1.MicroTime{}).Time
	s.Reported = metav1.NewTime(renewed)
	written := time.Time{}
	for _, m := range l.ManagedFields {
		if m.Time != nil && m.Time.After(written) {
			written = m.Time.Time
		}
	}
	if written.IsZero() || renewed.IsZero() {
		return s
	}
	s.Reported = metav1.NewTime(written)
	if ahead := renewed.Sub(written); ahead.Abs() >= clockTolerance {
		s.ClockAhead.Duration = ahead
		for i := range s.InFlight {
			s.InFlight[i].Since.Time = s.InFlight[i].Since.Add(-ahead)
		}
	}
	return s
}
