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
	"github.com/prebind/prebind/binder/runner"
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

// Verdict is what would become of a Binding.
type Verdict string

const (
	// VerdictBind says that it would be bound at once.
	VerdictBind Verdict = "bind"
	// VerdictWait says that it would have to wait, as far as can be seen without beginning it.
	VerdictWait Verdict = "wait"
	// VerdictRefuse says that it would be refused.
	VerdictRefuse Verdict = "refuse"
)

// Explanation tells what a Binding would do if it were no dry run. Its JSON is
// stable.
type Explanation struct {
	Verdict Verdict `json:"verdict"`
	// Mode is that of the pod's namespace: in ModeAudit the bind goes ahead whatever
	// the verdict is, and nothing is added to it.
	Mode Mode `json:"mode"`
	// Annotations and Labels would be added, by complete key. Those that an attempt
	// would add at its end are not known before.
	Annotations map[string]string `json:"annotations,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	// Plugins are the PreBind plugins that are switched on, in their order. It is
	// empty where the bind ends before any of them.
	Plugins []PluginExplanation `json:"plugins,omitempty"`
	// Refusal is why the bind would be refused, or would have to begin anew later.
	Refusal *Refusal `json:"refusal,omitempty"`
	// Warnings are those that the client would be shown.
	Warnings []string `json:"warnings,omitempty"`
	// Incomplete says that something was too long to be told.
	Incomplete bool `json:"incomplete,omitempty"`
}

// PluginVerdict is what a PreBind plugin would do about a bind.
type PluginVerdict string

const (
	// PluginNotAsked says that it takes no part, for nothing asks for it.
	PluginNotAsked PluginVerdict = "not-asked"
	// PluginReady says that there is nothing to do.
	PluginReady PluginVerdict = "ready"
	// PluginActs says that it would do what Would says, without a wait that could be foreseen.
	PluginActs PluginVerdict = "acts"
	// PluginWaits says that it would wait for what WaitsFor says.
	PluginWaits PluginVerdict = "waits"
	// PluginRefuses says that it would refuse the bind.
	PluginRefuses PluginVerdict = "refuses"
)

// PluginExplanation is what one PreBind plugin would do.
type PluginExplanation struct {
	Name    string        `json:"name"`
	Verdict PluginVerdict `json:"verdict"`
	// Would are the writes and waits, in whole sentences.
	Would []string `json:"would,omitempty"`
	// WaitsFor are objects with what has to happen to them.
	WaitsFor []string `json:"waitsFor,omitempty"`
	Refusal  *Refusal `json:"refusal,omitempty"`
}

// Refusal is an framework.Error to be shown elsewhere.
type Refusal struct {
	Kind    framework.Kind `json:"kind"`
	Plugin  string         `json:"plugin,omitempty"`
	Object  string         `json:"object,omitempty"`
	Message string         `json:"message"`
	Advice  string         `json:"advice,omitempty"`
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
		warnings = append(warnings, runner.Clip(w, maxMessage))
	}
	d.Warnings = warnings
	return d
}

func boundedError(err *framework.Error) *framework.Error {
	if err == nil {
		return nil
	}
	bounded := *err
	bounded.Message, bounded.Advice = runner.Clip(err.Message, maxMessage), runner.Clip(err.Advice, maxAdvice)
	bounded.Object = framework.Object{Kind: runner.Clip(err.Object.Kind, maxName), Namespace: runner.Clip(err.Object.Namespace, maxName), Name: runner.Clip(err.Object.Name, maxName)}
	bounded.Fields = nil
	for _, f := range err.Fields[:min(len(err.Fields), maxFields)] {
		bounded.Fields = append(bounded.Fields, framework.Field{Path: short(f.Path), Message: short(f.Message)})
	}
	if left := len(err.Fields) - maxFields; left > 0 {
		bounded.Fields = append(bounded.Fields, framework.Field{Message: fmt.Sprintf("and %d more", left)})
	}
	return &bounded
}

// maxEcho is how much of an invalid input is repeated in an error.
const maxEcho = 500

func short(text string) string { return runner.Clip(text, maxEcho) }

// podObject is the pod as the object of an error.
func podObject(pod types.NamespacedName) framework.Object {
	return framework.Object{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name}
}
