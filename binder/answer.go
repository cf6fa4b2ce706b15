// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/internal/work"
	"github.com/prebind/prebind/mutators"
)

// compose runs the mutators, adds what plugins add, and checks the size of the merged annotations. It returns the
// decision that allows the bind. An error rejects it, or makes it wait for a claim. The attempt is empty if no plugin has written.
func (c *call) compose(ctx context.Context, attempt string) (Decision, *framework.Error) {
	now := c.o.Clock.Now()
	in := mutators.Input{
		Pod: c.pod, Node: c.node, Binding: c.Binding, User: c.User,
		Bind: mutators.Bind{Attempt: attempt, Calls: c.calls + 1, Waited: now.Sub(c.first), At: now},
	}
	for _, r := range c.results {
		in.Devices = append(in.Devices, r.verdict.Devices...)
	}
	if c.settings.Claimed != nil && len(c.pod.Spec.ResourceClaims) > 0 {
		if !c.uses(c.claimsRead) {
			c.claimed, c.claimedErr = c.settings.Claimed(ctx, c.pod)
			c.claimsRead = now
		}
		in.Devices, in.DevicesErr = append(in.Devices, c.claimed...), c.claimedErr
	}
	_, done := c.o.Recorder.Step(ctx, work.Step{Name: work.StepMutators, Pod: c.Pod, Node: c.key.Node, Attempt: attempt})
	result := c.settings.Mutators.Mutate(in)
	done(nil)
	d := Decision{Annotations: result.Annotations, Labels: result.Labels, Conflicts: result.Conflicts, Failures: result.Failures}
	for _, conflict := range result.Conflicts {
		d.Warnings = append(d.Warnings, conflict.String())
	}
	if r := result.Refused; r != nil {
		if late, ok := errors.AsType[*framework.Error](in.DevicesErr); ok && late.Kind == framework.KindWait {
			return d, framework.AsError(r.Mutator, late) // The mutator may lack the devices of a claim that could not be read.
		}
		refused := framework.Refuse(framework.Object{Kind: "Node", Name: c.node.Name}, "%s", r.Message).Because(r).Advise("%s", r.Advice)
		return d, framework.AsError(r.Mutator, refused)
	}
	for _, f := range result.Failures {
		d.Warnings = append(d.Warnings, fmt.Sprintf("%s: mutator failed, its annotations and labels are left out: %v", f.Mutator, f.Err))
	}
	if c.Binding.UID == "" {
		d.UID = c.pod.UID
	}
	for _, r := range c.results {
		if err := add(d, r); err != nil {
			return d, framework.AsError(r.plugin.Name(), err)
		}
	}
	if attempt != "" {
		d.Annotations[framework.AttemptAnnotation] = attempt
	}
	return d, guardSize(c.pod, c.Binding, d.Annotations)
}

// add adds to the decision what a plugin adds. If several add a key, the last plugin wins.
func add(d Decision, r result) error {
	for key, value := range r.verdict.Annotations {
		if !strings.Contains(key, "/") {
			key = r.plugin.Name() + "." + v1alpha1.Domain + "/" + key
		}
		if len(validation.IsQualifiedName(key)) > 0 {
			return fmt.Errorf("invalid annotation key %q", short(key))
		}
		d.Annotations[key] = value
	}
	for _, key := range slices.Sorted(maps.Keys(r.verdict.Labels)) {
		value := r.verdict.Labels[key]
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

// waiting returns the answer to a call that could not wait any longer.
func (c *call) waiting(s step) *framework.Error {
	if len(s.waits) == 0 {
		// The call has ended before the decision, or may be rejected, but it is too early to say so.
		return framework.NotYet(podObject(c.Pod), "the request ended before the decision").Advise("retry the Binding")
	}
	first, more := s.waits[0], ""
	if n := len(s.waits) - 1; n > 0 {
		more = fmt.Sprintf(", and %d more", n)
	}
	err := framework.NotYet(first.Object, "waiting for %s (%s)%s", first.For, c.o.Clock.Since(c.first).Round(time.Second), more).Advise("retry the Binding")
	return framework.AsError(cmp.Or(s.plugin, framework.Binder), err)
}

// overBudget returns the answer to a bind that has waited for too long.
func (c *call) overBudget(s step) *framework.Error {
	err := framework.Refuse(s.waits[0].Object, "timed out after %s waiting for %s", c.budget, s.waits[0].For).
		Advise("check the cause of the delay, or allow a longer wait by binder.prebind.dev/timeout, the rule of the namespace or --prebind-timeout")
	return framework.AsError(cmp.Or(s.plugin, framework.Binder), err)
}
