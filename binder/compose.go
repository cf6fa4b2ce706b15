// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/loop"
	"github.com/prebind/prebind/binder/runner"
	"github.com/prebind/prebind/mutators"
)

// compose runs the mutators, adds what plugins add, and checks the merged metadata of the pod. The result is the
// decision that allows the bind. An error rejects it.
func (c *call) compose(ctx context.Context, ready loop.Ready) *framework.Error {
	now := c.clock.Now()
	in := mutators.Input{
		Pod: ready.Pod, Node: ready.Node, Binding: c.Binding, User: c.User,
		Bind: mutators.Bind{Attempt: ready.Attempt, Calls: c.calls + 1, Waited: now.Sub(c.first), At: now},
	}
	for _, r := range ready.Results {
		in.Devices = append(in.Devices, r.Verdict.Devices...)
	}
	if c.settings.Claimed != nil && len(ready.Pod.Spec.ResourceClaims) > 0 {
		claimed, err := c.settings.Claimed(ctx, ready.Pod)
		in.Devices, in.DevicesErr = append(in.Devices, claimed...), err
	}
	_, done := c.recorder.Step(ctx, runner.Step{Name: runner.StepMutators, Pod: c.Pod, Node: c.key.Node, Attempt: ready.Attempt})
	result := c.settings.Mutators.Mutate(in)
	done(nil)
	for _, f := range result.Failures {
		klog.FromContext(ctx).Error(f.Err, "Mutator failed, leaving out its annotations and labels", "mutator", f.Mutator, "stack", f.Stack)
	}
	c.composed = Decision{
		Annotations: result.Annotations, Labels: result.Labels,
		Warnings: append(mutatorWarnings(result), warningsOf(ready.Results)...), Conflicts: result.Conflicts, Failures: result.Failures,
	}
	if c.Binding.UID == "" {
		c.composed.UID = ready.Pod.UID
	}
	if r := result.Refused; r != nil {
		refused := framework.Refuse(framework.Object{Kind: "Node", Name: ready.Node.Name}, "%s", r.Message).Because(r).Advise("%s", r.Advice)
		return framework.AsError(r.Mutator, refused)
	}
	for _, r := range ready.Results {
		if err := add(c.composed, r); err != nil {
			return framework.AsError(r.Plugin.Name(), err)
		}
	}
	if ready.Attempt != "" {
		c.composed.Annotations[framework.AttemptAnnotation] = ready.Attempt
	}
	return guardMerged(ready.Pod, c.Binding, c.composed.Annotations, c.composed.Labels, c.mayCome())
}

// add adds to the decision what a plugin adds. If several add a key, the last plugin wins.
func add(d Decision, r loop.Result) error {
	for key, value := range r.Verdict.Annotations {
		if !strings.Contains(key, "/") {
			key = r.Plugin.Name() + "." + framework.Domain + "/" + key
		}
		if len(validation.IsQualifiedName(key)) > 0 {
			return fmt.Errorf("invalid annotation key %q", short(key))
		}
		d.Annotations[key] = value
	}
	for _, key := range slices.Sorted(maps.Keys(r.Verdict.Labels)) {
		value := r.Verdict.Labels[key]
		if len(validation.IsQualifiedName(key)) > 0 {
			return fmt.Errorf("invalid label key %q", short(key))
		}
		if problems := validation.IsValidLabelValue(value); len(problems) > 0 {
			return errors.New("invalid value " + fmt.Sprintf("%q", short(value)) + " of label " + key + ": " + problems[0])
		}
		d.Labels[key] = value
	}
	return nil
}

// mayCome returns what the attempt adds to the Binding if a plugin writes.
func (c *call) mayCome() map[string]string {
	if len(c.settings.Plugins) == 0 {
		return nil
	}
	return c.anyAttempt
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
