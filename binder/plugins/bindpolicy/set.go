// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bindpolicy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
)

// entry is a compiled generation of a policy with its selections. It is immutable.
type entry struct {
	name       string
	uid        types.UID
	generation int64
	compiled   *policy.Compiled
	reads      reads
	counters   *counters
	// unwatched is the reason why the policy cannot be evaluated yet: its watches have not delivered all objects. The binds
	// that it selects wait.
	unwatched string
}

// set contains the policies in force, in the order of their names. It is immutable.
type set []*entry

// prepared is the progress of one generation of a policy.
type prepared struct {
	uid        types.UID
	generation int64
	// entry is nil until the generation is compiled, and if it does not compile.
	entry *entry
	// stub is the entry while the watches of the generation fail; see unwatched.
	stub *entry
	// done means that the generation is usable, or that problem is the reason why it is not.
	done     bool
	problem  *problem
	warnings []v1alpha1.ExpressionWarning
}

// isFor returns whether the result is that of this generation of the policy.
func (p *prepared) isFor(b *v1alpha1.BindPolicy) bool {
	return p != nil && p.uid == b.UID && p.generation == b.Generation
}

// problem is the reason why a generation is not usable.
type problem struct {
	reason, message string
	// passing means that the problem can end without a new generation.
	passing bool
}

// state is the state of a policy in this replica. It is the value of a label of the metrics.
type state string

const (
	// stateInForce: the latest generation is in force.
	stateInForce state = "in_force"
	// stateOutdated: an earlier generation is in force.
	stateOutdated state = "outdated"
	// stateNotReady: no generation is in force.
	stateNotReady state = "not_ready"
)

// verdict is the decision on one policy.
type verdict struct {
	state state
	// known means that the latest generation is in force, or that there is a reason why it is not. Otherwise, it is
	// being prepared.
	known      bool
	uid        types.UID
	generation int64
	// reason and message are those of the condition Ready.
	reason, message string
	warnings        []v1alpha1.ExpressionWarning
}

// decide returns the policies in force, and the decision on each policy by name. latest contains the progress of
// generations, and last the policies in force so far, both by name. A generation that is not usable leaves
// the last one in force. A policy with another UID is another policy.
func decide(policies []v1alpha1.BindPolicy, latest map[string]*prepared, last map[string]*entry) (map[string]*entry, map[string]verdict) {
	inForce, verdicts := map[string]*entry{}, map[string]verdict{}
	for i := range policies {
		b := &policies[i]
		v := verdict{state: stateNotReady, uid: b.UID, generation: b.Generation}
		used := last[b.Name]
		if used != nil && used.uid != b.UID {
			used = nil
		}
		p := latest[b.Name]
		switch {
		case !p.isFor(b) || !p.done:
		case p.problem == nil:
			used = p.entry
			v.known, v.reason, v.warnings = true, v1alpha1.ReasonInForce, p.warnings
			v.message = fmt.Sprintf("generation %d is in force", b.Generation)
		default:
			v.known, v.reason, v.warnings = true, p.problem.reason, p.warnings
			v.message = p.problem.message
		}
		if used != nil && used.unwatched != "" {
			used = nil
		}
		if used == nil && p.isFor(b) && p.done && mustWait(b, p) {
			inForce[b.Name] = p.unwatched()
		}
		if used != nil {
			inForce[b.Name] = used
			v.state = stateOutdated
			if used.generation == b.Generation {
				v.state = stateInForce
			}
		}
		if v.known && v.reason != v1alpha1.ReasonInForce {
			v.message += remaining(used)
			if e := inForce[b.Name]; e != nil && e.unwatched != "" {
				v.message = p.problem.message + "; the binds that the policy selects wait"
			}
		}
		verdicts[b.Name] = v
	}
	return inForce, verdicts
}

// mustWait returns whether the binds that the policy selects wait for its watches. A policy whose watches begin slowly, for
// example because the API server is overloaded, may have been in force before this replica started. A policy with another
// problem is not in force.
func mustWait(b *v1alpha1.BindPolicy, p *prepared) bool {
	return p.problem != nil && p.problem.reason == v1alpha1.ReasonWatchFailed && p.entry != nil &&
		b.Spec.Mode != v1alpha1.ModeAudit && b.Spec.FailurePolicy != v1alpha1.FailurePolicyIgnore
}

// unwatched returns an entry for a policy that cannot be evaluated.
func (p *prepared) unwatched() *entry {
	if p.stub == nil {
		stub := *p.entry
		stub.unwatched = p.problem.message
		p.stub = &stub
	}
	return p.stub
}

// remaining returns the end of the message of a policy whose latest generation is not in force.
func remaining(used *entry) string {
	if used == nil {
		return "; the policy is not in force"
	}
	return fmt.Sprintf("; generation %d stays in force", used.generation)
}

// ordered returns the policies in the order of their names.
func ordered(inForce map[string]*entry) set {
	return slices.SortedFunc(maps.Values(inForce), func(a, b *entry) int {
		return cmp.Compare(a.name, b.name)
	})
}
