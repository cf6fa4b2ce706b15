// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/mutation"
	"github.com/prebind/prebind/internal/text"
)

// Request is one Binding that a scheduler posted.
type Request struct {
	// Pod is the pod that the Binding names.
	Pod types.NamespacedName
	// Binding must not change while the bind is in progress, which may be longer than the
	// call.
	Binding *corev1.Binding
	// User posted it.
	User authenticationv1.UserInfo
	// DryRun forbids every side effect.
	DryRun bool
}

// Decision is the engine's answer to a Request.
type Decision struct {
	// Err is nil if the bind is allowed. Otherwise it has the reason, and its kind says what
	// the client should do. It always names its plugin.
	Err *framework.Error
	// RetryAfter is when a client that has to wait should call again, in whole seconds from
	// one. It is zero for every other kind.
	RetryAfter time.Duration
	// PassThrough is set if Prebind does not decide on this Binding. The API server gives its
	// own answer.
	PassThrough bool
	// Annotations and Labels are to be set on the Binding, by complete key.
	Annotations, Labels map[string]string
	// Audit is the decision in ModeAudit, where the bind is allowed unchanged. It is nil in
	// every other mode.
	Audit *Audit
	// Explanation describes what a dry run would do. It is nil for other requests, and if the
	// API server gives its own answer.
	Explanation *Explanation
	// UID pins the Binding to the pod that was checked. It is empty if the Binding has a UID.
	UID types.UID
	// ResourceVersion pins the Binding to the version of a pod with scheduling gates, which the API server rejects. Otherwise it
	// is empty.
	ResourceVersion string
	// Warnings are shown to the client with every answer.
	Warnings []string
	// Conflicts and Failures are those of the mutators. The warnings contain them.
	Conflicts []mutation.Conflict
	Failures  []mutation.Failure
	// Attempt is the ID of the attempt that the call began or joined, or "".
	Attempt string
	// Calls is how often the Binding was posted to this replica, this call included. Waited is
	// the time since the first of these calls. Both are zero for a first call that neither waited nor
	// has an attempt.
	Calls  int
	Waited time.Duration
}

// Audit is a decision that is only reported; see ModeAudit.
type Audit struct {
	// Kind is what Decision.Kind would be, or "waiting" if the bind would wait.
	Kind string
	// Err is the reason why the bind would be rejected, or nil.
	Err *framework.Error
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

// Decisions returns the values of Decision.Kind.
func Decisions() []string {
	return []string{
		"allowed", "passed-through", "audited", string(framework.KindWait), string(framework.KindRefuse), string(framework.KindStale),
		string(framework.KindInvalid), string(framework.KindInternal),
	}
}

// Verdict is the expected result of a Binding.
type Verdict string

const (
	// VerdictBind means that the pod would be bound at once.
	VerdictBind Verdict = "bind"
	// VerdictWait means that the bind would have to wait, as far as PreFlight can predict it.
	VerdictWait Verdict = "wait"
	// VerdictRefuse means that the bind would be rejected.
	VerdictRefuse Verdict = "refuse"
)

// Explanation describes what a Binding in a dry run would do without the dry run. Its JSON is
// stable.
type Explanation struct {
	Verdict Verdict `json:"verdict"`
	// Mode is that of the pod's namespace. In ModeAudit the bind is allowed unchanged for
	// every verdict.
	Mode Mode `json:"mode"`
	// Annotations and Labels would be added, by complete key. Those that an attempt adds at
	// its end are unknown.
	Annotations map[string]string `json:"annotations,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	// Plugins are the enabled PreBind plugins, in order. It is empty if the bind ends before
	// PreFlight.
	Plugins []PluginExplanation `json:"plugins,omitempty"`
	// Refusal is why the bind would be rejected, or would have to start again later.
	Refusal *Refusal `json:"refusal,omitempty"`
	// Warnings are those that the client would see.
	Warnings []string `json:"warnings,omitempty"`
	// Incomplete is set if the explanation was shortened.
	Incomplete bool `json:"incomplete,omitempty"`
}

// PluginVerdict is what a PreBind plugin would do for a bind.
type PluginVerdict string

const (
	// PluginNotAsked means that no annotation requests the plugin.
	PluginNotAsked PluginVerdict = "not-asked"
	// PluginReady means that the plugin has no work to do.
	PluginReady PluginVerdict = "ready"
	// PluginActs means that the plugin would do what Would lists, without a predictable wait.
	PluginActs PluginVerdict = "acts"
	// PluginWaits means that the plugin would wait for what WaitsFor lists.
	PluginWaits PluginVerdict = "waits"
	// PluginRejects means that the plugin would reject the bind.
	PluginRejects PluginVerdict = "rejects"
)

// PluginExplanation is what one PreBind plugin would do.
type PluginExplanation struct {
	Name    string        `json:"name"`
	Verdict PluginVerdict `json:"verdict"`
	// Would lists writes and waits, as sentences.
	Would []string `json:"would,omitempty"`
	// WaitsFor lists objects, each with the expected change.
	WaitsFor []string `json:"waitsFor,omitempty"`
	// Findings are the results of the plugin's rules, such as policies.
	Findings []framework.Finding `json:"findings,omitempty"`
	Refusal  *Refusal            `json:"refusal,omitempty"`
}

// Refusal is the JSON form of a framework.Error.
type Refusal struct {
	Kind    framework.Kind `json:"kind"`
	Plugin  string         `json:"plugin,omitempty"`
	Object  string         `json:"object,omitempty"`
	Message string         `json:"message"`
	Advice  string         `json:"advice,omitempty"`
}

// Limits of the texts of a decision, in bytes. Plugins and mutators may repeat text of objects
// that tenants can write.
const (
	maxMessage = 2048
	maxAdvice  = 1024
	// maxName is the longest name that an object can have.
	maxName = 253
	// maxWarnings is how many warnings there are, each of maxMessage.
	maxWarnings = 50
)

// bounded returns the complete decision with each warning once, and texts within the limits. It changes only the copy, and the
// explanation.
func (d Decision) bounded() Decision {
	all := d.Warnings
	d.Warnings = nil
	for _, w := range all {
		if w = text.Clip(w, maxMessage); len(d.Warnings) < maxWarnings && !slices.Contains(d.Warnings, w) {
			d.Warnings = append(d.Warnings, w)
		}
	}
	if d.Err != nil {
		err := framework.AsError(framework.Binder, d.Err)
		err.Message, err.Advice = text.Clip(err.Message, maxMessage), text.Clip(err.Advice, maxAdvice)
		err.Object = framework.Object{Kind: text.Clip(err.Object.Kind, maxName), Namespace: text.Clip(err.Object.Namespace, maxName), Name: text.Clip(err.Object.Name, maxName)}
		if d.Err = err; err.Kind == framework.KindWait && d.RetryAfter == 0 {
			d.RetryAfter = atOnce
		}
	}
	if x := d.Explanation; x != nil {
		x.Refusal, x.Warnings = refusalOf(d.Err), d.Warnings
	}
	return d
}

// maxEcho is how much of an invalid input is repeated in an error.
const maxEcho = 500

func short(s string) string { return text.Clip(s, maxEcho) }

// podObject is the pod as the object of an error.
func podObject(pod types.NamespacedName) framework.Object {
	return framework.Object{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name}
}
