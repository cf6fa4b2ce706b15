// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder/attempt"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/runner"
	"github.com/prebind/prebind/mutators"
)

// mutate runs the mutators and checks the merged metadata of the pod, before anything is
// done for the bind. It keeps the result as the call's preview.
func (c *call) mutate(ctx context.Context) *framework.Error {
	var err *framework.Error
	c.preview, err = c.compose(ctx, additions{})
	for _, f := range c.preview.Failures {
		klog.FromContext(ctx).Error(f.Err, "Mutator failed, leaving out its annotations and labels", "mutator", f.Mutator, "stack", f.Stack)
	}
	return err
}

// additions are what plugins add to a Binding.
type additions struct {
	attempt string
	// annotations have the plugin's own keys. complete and labels have complete keys.
	annotations, complete, labels byPlugin
	devices                       []framework.Device
	// started are the plugins whose PreBind was started. They may be disabled since then.
	started []string
}

// byPlugin contains values by plugin and key.
type byPlugin map[string]map[string]string

// additionsOf returns what plugins add: each by the context of its own last PreBind, if any,
// and by the latest context, which wins. Complete keys of the plugins that took part in the latest
// context are only those of this context, because an earlier rule may no longer apply. The latest
// context has all devices, because PreFlight reports them and runs for every context.
func additionsOf(id string, plugins []framework.PreBinder, latest *framework.BindContext, started ...attempt.Started) additions {
	type values = func(*framework.BindContext) map[string]map[string]string
	merged := func(of values, earlier func(plugin string) bool) byPlugin {
		var all byPlugin
		for _, r := range started {
			if name := r.Plugin.Name(); earlier(name) {
				all.copy(name, of(r.Context)[name])
			}
		}
		for plugin, values := range of(latest) {
			all.copy(plugin, values)
		}
		return all
	}
	always := func(string) bool { return true }
	absent := func(plugin string) bool { return !takesPart(plugins, plugin) }
	add := additions{
		attempt: id, devices: latest.Devices(), annotations: merged((*framework.BindContext).Annotations, always),
		complete: merged((*framework.BindContext).CompleteAnnotations, absent), labels: merged((*framework.BindContext).Labels, absent),
	}
	for _, r := range started {
		add.started = append(add.started, r.Plugin.Name())
	}
	return add
}

func (b *byPlugin) copy(plugin string, values map[string]string) {
	if len(values) == 0 {
		return
	}
	if *b == nil {
		*b = byPlugin{}
	}
	if (*b)[plugin] == nil {
		(*b)[plugin] = map[string]string{}
	}
	maps.Copy((*b)[plugin], values)
}

func (a additions) none() bool {
	return a.attempt == "" && len(a.annotations)+len(a.complete)+len(a.labels)+len(a.devices) == 0
}

// compose returns the decision that allows the bind, or an error if it is not allowed. The
// decision has the warnings of the mutators in both cases.
func (c *call) compose(ctx context.Context, add additions) (Decision, *framework.Error) {
	in := mutators.Input{Pod: c.pod, Node: c.node, Binding: c.Binding, User: c.User, Bind: c.course(add.attempt), Devices: add.devices}
	if c.settings.Claimed != nil && len(c.pod.Spec.ResourceClaims) > 0 {
		claimed, err := c.settings.Claimed(ctx, c.pod)
		if err != nil && ctx.Err() != nil {
			// No mutator has failed.
			return Decision{}, framework.AsError(framework.Binder, framework.FromAPI(podObject(c.Pod), "reading the ResourceClaims of the pod", err))
		}
		in.Devices, in.DevicesErr = append(in.Devices, claimed...), err
	}
	_, done := c.recorder.Step(ctx, c.step(runner.StepMutators, add.attempt))
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
	if err := c.add(d, add); err != nil {
		return d, err
	}
	if add.attempt != "" {
		d.Annotations[framework.AttemptAnnotation] = add.attempt
	}
	return d, guardMerged(c.pod, c.Binding, d.Annotations, d.Labels, c.mayCome())
}

// add adds to the decision what the plugins add. If several add a key, the last plugin by name wins.
func (c *call) add(d Decision, add additions) *framework.Error {
	for _, from := range []struct {
		kind   string
		values byPlugin
		key    func(plugin, key string) string
		valid  func(value string) []string
		to     map[string]string
	}{
		{"annotation", add.annotations, func(plugin, short string) string { return plugin + "." + framework.Domain + "/" + short }, anyValue, d.Annotations},
		{"annotation", add.complete, completeKey, anyValue, d.Annotations},
		{"label", add.labels, completeKey, validation.IsValidLabelValue, d.Labels},
	} {
		for _, plugin := range slices.Sorted(maps.Keys(from.values)) {
			for given, value := range from.values[plugin] {
				key := from.key(plugin, given)
				if !takesPart(c.plugins, plugin) && !slices.Contains(add.started, plugin) || len(validation.IsQualifiedName(key)) > 0 {
					return framework.AsError(plugin, fmt.Errorf("invalid %s key %q", from.kind, short(given)))
				}
				if problems := from.valid(value); len(problems) > 0 {
					return framework.AsError(plugin, fmt.Errorf("invalid value %q of %s %s: %s", short(value), from.kind, key, problems[0]))
				}
				from.to[key] = value
			}
		}
	}
	return nil
}

func completeKey(_, key string) string { return key }

func anyValue(string) []string { return nil }

// mayCome returns what an attempt would add to the Binding.
func (c *call) mayCome() map[string]string {
	if len(c.plugins) == 0 {
		return nil
	}
	return c.anyAttempt
}

// course describes the bind so far, for the mutators.
func (c *call) course(id string) mutators.Bind {
	before, now := c.before(), c.clock.Now()
	return mutators.Bind{Attempt: id, Calls: before.calls + 1, Waited: now.Sub(before.since), At: now}
}

func mutatorWarnings(r mutators.Result) []string {
	var warnings []string
	for _, c := range r.Conflicts {
		warnings = append(warnings, c.String())
	}
	for _, f := range r.Failures {
		warnings = append(warnings, fmt.Sprintf("%s: mutator failed, its annotations and labels are left out: %v", f.Mutator, f.Err))
	}
	return warnings
}
