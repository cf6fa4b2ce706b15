// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/pacing"
	"github.com/prebind/prebind/mutators"
)

// call is one Request on its way through the engine.
type call struct {
	Request
	// settings are those in force when the call came, and policy what they say of the
	// pod's namespace.
	settings *Settings
	policy   policy

	key  attemptKey
	pod  *corev1.Pod
	node *corev1.Node
	// refreshed is the context whose pod and node are live, or nil.
	refreshed *framework.BindContext
	// plugins are those that take part.
	plugins []framework.PreBinder
	budget  time.Duration
	began   time.Time
	// preview is what the answer would be if no plugin had anything to do.
	preview Decision
	// attempt is the ID of the one that the call began or joined, which is joined, or "".
	attempt string
	joined  *attempt
	// kind is that of the wait and waitBegan its beginning, once the call has asked for a
	// seat. kept says that it kept the seat to the end of its hold.
	kind      pacing.Kind
	waitBegan time.Time
	kept      bool
	// missed is how many earlier calls for the bind other replicas have answered, as an estimate.
	missed int
}

// context returns that of an attempt for this call.
func (c *call) context(attempt string, now time.Time) *framework.BindContext {
	return &framework.BindContext{
		Pod: c.pod, Node: c.node, Binding: c.Binding, User: c.User, Attempt: attempt, DryRun: c.DryRun, Now: now, Since: now,
	}
}

// join notes the attempt that the call is at, or that there is none.
func (c *call) join(a *attempt) {
	c.attempt, c.joined = "", a
	if a != nil {
		c.attempt = a.id
	}
}

// step is one of the engine's own steps on this call. The attempt takes its last look
// by it as well.
func (c *call) step(name, attempt string) Step {
	return Step{Name: name, Pod: c.Pod, Node: c.key.node, Attempt: attempt}
}

// additions are what plugins add to a Binding.
type additions struct {
	attempt     string
	annotations map[string]map[string]string
	devices     []framework.Device
	// started are the plugins whose PreBind was: they may be switched off meanwhile.
	started []string
}

// additionsOf collects what plugins add: each by the context of its own last
// PreBind, if there was any, and by the latest one, which wins. The latest one knows
// the devices: PreFlight, which every context has been through, tells of all.
func additionsOf(attempt string, latest *framework.BindContext, started ...ran) additions {
	add := additions{attempt: attempt, devices: latest.Devices()}
	if len(started) == 0 {
		add.annotations = latest.Annotations()
		return add
	}
	add.annotations = map[string]map[string]string{}
	for _, r := range started {
		add.started = append(add.started, r.plugin.Name())
		if own := r.bc.Annotations()[r.plugin.Name()]; own != nil {
			add.annotations[r.plugin.Name()] = own
		}
	}
	for plugin, annotations := range latest.Annotations() {
		if add.annotations[plugin] == nil {
			add.annotations[plugin] = map[string]string{}
		}
		maps.Copy(add.annotations[plugin], annotations)
	}
	return add
}

func (a additions) none() bool {
	return a.attempt == "" && len(a.annotations) == 0 && len(a.devices) == 0
}

// preview runs the mutators and checks what would become of the pod, before
// anything is done for the bind.
func (e *Engine) preview(ctx context.Context, c *call) *framework.Error {
	var err *framework.Error
	c.preview, err = e.compose(ctx, c, additions{})
	for _, f := range c.preview.Failures {
		klog.FromContext(ctx).Error(f.Err, "A mutator failed, what it adds is left out", "mutator", f.Mutator, "stack", f.Stack)
	}
	return err
}

// compose makes the decision that lets the bind go ahead, or says why it may not.
// The decision tells in any case what the mutators met with.
func (e *Engine) compose(ctx context.Context, c *call, add additions) (Decision, *framework.Error) {
	in := mutators.Input{Pod: c.pod, Node: c.node, Binding: c.Binding, User: c.User, Bind: e.course(c, add.attempt), Devices: add.devices}
	if c.settings.Claimed != nil && len(c.pod.Spec.ResourceClaims) > 0 {
		claimed, err := c.settings.Claimed(ctx, c.pod)
		if err != nil && ctx.Err() != nil {
			// No mutator has failed.
			about := framework.Object{Kind: "Pod", Namespace: c.pod.Namespace, Name: c.pod.Name}
			return Decision{}, framework.AsError(guardName, framework.FromAPI(about, "reading its ResourceClaims", err))
		}
		in.Devices, in.DevicesErr = append(in.Devices, claimed...), err
	}
	_, done := e.o.Recorder.Step(ctx, c.step(StepMutators, add.attempt))
	result := c.settings.Mutators.Mutate(in)
	done(nil)
	d := Decision{
		Annotations: result.Annotations, Labels: result.Labels,
		Warnings: mutatorWarnings(result), Conflicts: result.Conflicts, Failures: result.Failures,
	}
	if c.Binding.UID == "" {
		d.UID = c.pod.UID
	}
	if r := result.Refused; r != nil {
		refused := framework.Refuse(framework.Object{Kind: "Node", Name: c.node.Name}, "%s", r.Message).Because(r).Advise("%s", r.Advice)
		return d, framework.AsError(r.Mutator, refused)
	}
	for plugin, annotations := range add.annotations {
		for short, value := range annotations {
			key := plugin + "." + e.o.Domain + "/" + short
			if !takesPart(c.plugins, plugin) && !slices.Contains(add.started, plugin) || len(validation.IsQualifiedName(key)) > 0 {
				return d, framework.AsError(plugin, fmt.Errorf("it adds the annotation %q, which is no key of its own", short))
			}
			d.Annotations[key] = value
		}
	}
	if add.attempt != "" {
		d.Annotations[attemptAnnotation(e.o.Domain)] = add.attempt
	}
	return d, guardMerged(c.pod, c.Binding, d.Annotations, d.Labels, e.mayCome(c))
}

func takesPart(plugins []framework.PreBinder, name string) bool {
	return slices.ContainsFunc(plugins, func(p framework.PreBinder) bool { return p.Name() == name })
}

// mayCome is what an attempt would add to the Binding, where there is none yet. All
// attempts' IDs are of one length.
func (e *Engine) mayCome(c *call) map[string]string {
	if len(c.plugins) == 0 {
		return nil
	}
	return e.anyAttempt
}

// allow lets the bind go ahead without any attempt.
func (e *Engine) allow(ctx context.Context, c *call, bc *framework.BindContext) Decision {
	add := additionsOf("", bc)
	if add.none() {
		return c.preview
	}
	d, err := e.compose(ctx, c, add)
	if err != nil {
		return e.later(c, err)
	}
	return d
}

// allowBy lets the bind go ahead that the attempt has prepared, and makes the pod
// tell which attempt it was. latest is the context by which this call knows that
// it is prepared. It returns false when the attempt is not prepared any more.
func (e *Engine) allowBy(ctx context.Context, c *call, a *attempt, latest *framework.BindContext) (Decision, bool) {
	d, err := e.compose(ctx, c, additionsOf(a.id, latest, e.attempts.startedBy(a)...))
	if err != nil {
		e.attempts.discard(a)
		return e.later(c, err), true
	}
	if !e.attempts.allowed(a) {
		return Decision{}, false
	}
	e.waits.Remove(c.key)
	return d, true
}

// waited are the calls for one bind that had to wait.
type waited struct {
	calls int
	since time.Time
	// missed is the estimate of the calls that other replicas have answered, and next when the
	// client was asked to call again.
	missed int
	next   time.Time
	// told is when an event last reported the wait, and toldOf what for.
	told   time.Time
	toldOf framework.Object
}

// remember changes what is known of the calls for the bind.
func (e *Engine) remember(c *call, change func(w *waited)) {
	e.waitsMu.Lock()
	defer e.waitsMu.Unlock()
	w := e.waitedBefore(c)
	change(&w)
	e.waits.Add(c.key, w, forgetWaits)
}

// waitedBefore returns those before this call.
func (e *Engine) waitedBefore(c *call) waited {
	if found, ok := e.waits.Get(c.key); ok {
		if w, ok := found.(waited); ok {
			return w
		}
	}
	return waited{since: c.began}
}

// course tells how the bind has gone so far.
func (e *Engine) course(c *call, attempt string) mutators.Bind {
	before, now := e.waitedBefore(c), e.o.Clock.Now()
	return mutators.Bind{Attempt: attempt, Calls: before.calls + 1, Waited: now.Sub(before.since), At: now}
}

func mutatorWarnings(r mutators.Result) []string {
	var warnings []string
	for _, c := range r.Conflicts {
		warnings = append(warnings, c.String())
	}
	for _, f := range r.Failures {
		warnings = append(warnings, fmt.Sprintf("%s: what it adds is left out: %v", f.Mutator, f.Err))
	}
	return warnings
}
