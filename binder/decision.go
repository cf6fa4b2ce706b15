// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/mutators"
)

// Request is one Binding that a scheduler posted.
type Request struct {
	// Pod is the pod that the Binding names.
	Pod types.NamespacedName
	// Binding is read only for as long as the bind is under way, which may be
	// longer than the call.
	Binding *corev1.Binding
	// User posted it.
	User authenticationv1.UserInfo
	// DryRun forbids every side effect.
	DryRun bool
}

// Decision is the engine's answer to a Request.
type Decision struct {
	// Err is nil when the bind may go ahead; otherwise it says why not, and its
	// kind what the client should do about it. It always names its plugin.
	Err *framework.Error
	// RetryAfter is when a client that has to wait should call again: whole
	// seconds, at least one. Zero for every other kind.
	RetryAfter time.Duration
	// PassThrough says that Prebind has no part in this Binding and nothing was
	// looked at further: the API server gives its own answer.
	PassThrough bool
	// Annotations and Labels are to be set on the Binding, by complete key.
	Annotations, Labels map[string]string
	// Audit is what was decided where the decision is only reported: the bind goes
	// ahead as it is. It is nil elsewhere.
	Audit *Audit
	// Explanation tells of a dry run what the bind would do. It is nil elsewhere, and
	// where the API server gives its own answer.
	Explanation *Explanation
	// UID pins the Binding to the very pod that was checked. Empty when the
	// Binding has a UID already.
	UID types.UID
	// Warnings are shown to the client, whatever the answer.
	Warnings []string
	// Conflicts and Failures are what the mutators met with, whatever the answer.
	// The warnings tell of them already.
	Conflicts []mutators.Conflict
	Failures  []mutators.Failure
	// Attempt is the one that the call began or joined. Empty where there was none.
	Attempt string
	// Calls is how often the Binding was posted to this replica, this call included,
	// and Waited the time since the first of these calls. Both are zero for a first
	// call without an attempt.
	Calls  int
	Waited time.Duration
}

// Audit is a decision that is only reported.
type Audit struct {
	// Kind is what Decision.Kind would be, or "waiting" where the bind would wait.
	Kind string
	// Err is why the bind would not be allowed, or nil.
	Err *framework.Error
	// WaitsFor is what it would wait for.
	WaitsFor []string
}

// Kind is "allowed", "passed-through", "audited", or the kind of the error. These
// are the values of the decision label of the metrics.
func (d Decision) Kind() string {
	switch {
	case d.Audit != nil:
		return "audited"
	case d.Err != nil:
		return string(d.Err.Kind)
	case d.PassThrough:
		return "passed-through"
	default:
		return "allowed"
	}
}

func denied(err *framework.Error) Decision { return Decision{}.deny(err) }

// deny makes the decision a denial; what the mutators met with stays.
func (d Decision) deny(err *framework.Error) Decision {
	d = Decision{Err: err, Warnings: d.Warnings, Conflicts: d.Conflicts, Failures: d.Failures, Explanation: d.Explanation}
	if err.Kind == framework.KindWait {
		d.RetryAfter = time.Second
	}
	return d
}

// Limits of the texts of a decision, in bytes. They hold whatever plugins and mutators
// echo of a pod, of a Binding, or of an object that a tenant can write.
const (
	maxMessage = 2048
	maxAdvice  = 1024
	// maxName is the longest name that an object can have.
	maxName   = 253
	maxFields = 20
	// maxWarnings is how many warnings there are, each of maxMessage.
	maxWarnings = 50
)

// bounded returns the decision with texts that are not longer than the limits. What
// others hold of it, such as an attempt's error, is not changed.
func (d Decision) bounded() Decision {
	d.Err = boundedError(d.Err)
	if len(d.Warnings) == 0 {
		return d
	}
	var warnings []string
	for _, w := range d.Warnings[:min(len(d.Warnings), maxWarnings)] {
		warnings = append(warnings, clip(w, maxMessage))
	}
	d.Warnings = warnings
	return d
}

func boundedError(err *framework.Error) *framework.Error {
	if err == nil {
		return nil
	}
	bounded := *err
	bounded.Message, bounded.Advice = clip(err.Message, maxMessage), clip(err.Advice, maxAdvice)
	bounded.Object = framework.Object{Kind: clip(err.Object.Kind, maxName), Namespace: clip(err.Object.Namespace, maxName), Name: clip(err.Object.Name, maxName)}
	bounded.Fields = nil
	for _, f := range err.Fields[:min(len(err.Fields), maxFields)] {
		bounded.Fields = append(bounded.Fields, framework.Field{Path: short(f.Path), Message: short(f.Message)})
	}
	if left := len(err.Fields) - maxFields; left > 0 {
		bounded.Fields = append(bounded.Fields, framework.Field{Message: fmt.Sprintf("and %d more", left)})
	}
	return &bounded
}
