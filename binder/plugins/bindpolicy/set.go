// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bindpolicy

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
)

// entry is the newest generation of a policy. It is immutable.
type entry struct {
	name       string
	uid        types.UID
	generation int64
	// compiled cannot be evaluated if the generation does not compile, or is not compiled yet.
	compiled *policy.Compiled
	reads    reads
	counters *counters
	// unwatched contains the reasons why selections cannot be read, by their names.
	unwatched map[string]error
}

// isFor returns whether the entry is that of this generation of the policy.
func (e *entry) isFor(b *v1alpha1.BindPolicy) bool {
	return e.uid == b.UID && e.generation == b.Generation
}

// set contains all policies in the order of their names. It is immutable.
type set []*entry

// state is the state of a policy in this replica. It is the value of a label of the metrics.
type state string

const (
	// stateInForce: the policy can be evaluated.
	stateInForce state = "in_force"
	// stateNotReady: the policy cannot be evaluated, and follows its failure policy.
	stateNotReady state = "not_ready"
)

// verdict is what the status of a policy says.
type verdict struct {
	// reason and message are those of the condition Ready. They are empty while the generation is being prepared.
	reason, message string
	warnings        []v1alpha1.ExpressionWarning
}

func (v verdict) state() state {
	if v.reason == v1alpha1.ReasonInForce {
		return stateInForce
	}
	return stateNotReady
}
