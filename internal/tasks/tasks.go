// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tasks runs the tasks of BindPolicies: steps that other programs do before a bind. A BindTask asks a handler for one step.
//
// Decide is a pure function of the results of the policies and of the BindTasks in the cache. A Store creates the BindTasks of a bind, and confirms or
// deletes them when the bind is over.
package tasks

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/internal/text"
	"github.com/prebind/prebind/policy/v1alpha1"
)

// MaxTasks is the maximum number of tasks of a bind.
const MaxTasks = 8

// Selection contains all BindTasks, by the UID of their pod.
var Selection = framework.Selection{
	Name: "policy/tasks", Example: &v1alpha1.BindTask{},
	Value: func(o client.Object) string {
		if t, ok := o.(*v1alpha1.BindTask); ok {
			return string(t.Spec.Pod.UID)
		}
		return ""
	},
	Transform: framework.Transform(func(t *v1alpha1.BindTask) *v1alpha1.BindTask {
		// Nothing reads the parameters, which a user can choose, and which stay as long as the pod.
		t.ManagedFields, t.Spec.Parameters = nil, nil
		return t
	}),
}

// Asked is a task that a policy needs for a bind, and its BindTask as of this pass.
type Asked struct {
	policy.Task
	// Found is the BindTask in the cache, or nil. It is shared: do not change it.
	Found *v1alpha1.BindTask
	// name is that of the BindTask.
	name string
}

// nameOf returns the name of the BindTask. Each task has one for each pod and node, so that every replica finds it. A policy can be edited while
// the bind waits, and a node can be replaced by another one with its name: then the bind needs another BindTask.
func nameOf(t policy.Task, bc *framework.BindContext) string {
	identity := []string{t.Policy, t.Name, t.Handler, string(t.Retain), string(bc.Pod.UID), bc.Node.Name, string(bc.Node.UID)}
	sum := sha256.Sum256([]byte(strings.Join(identity, "/")))
	return t.Name + "-" + hex.EncodeToString(sum[:8])
}

// Read reads the BindTasks that the results need from the cache. Policies in mode Audit need none.
func Read(ctx context.Context, cache framework.Reader, bc *framework.BindContext, results []policy.Result) ([]Asked, error) {
	var all []Asked
	for _, r := range results {
		if r.Audit {
			continue
		}
		for _, t := range r.Tasks {
			a := Asked{Task: t, name: nameOf(t, bc)}
			var err error
			if a.Found, err = framework.Get(ctx, cache, &v1alpha1.BindTask{}, "", a.name, Selection); err != nil {
				return nil, err
			}
			all = append(all, a)
		}
	}
	return all, nil
}

// state is what a task means for its bind.
type state struct {
	verdict policy.Verdict
	message string
	// writes says that PreBind has to create or to join the BindTask.
	writes bool
}

// state returns the state of the task.
func (a *Asked) state(bc *framework.BindContext) state {
	deleting := a.Found != nil && a.Found.DeletionTimestamp != nil
	// A dry run has no attempt of its own.
	mine := a.Found != nil && !deleting && (slices.Contains(a.Found.Spec.Attempts, bc.Attempt) || bc.DryRun)
	s := state{verdict: policy.Waiting, message: a.awaited()}
	switch {
	case mine && a.Found.IsTrue(v1alpha1.TaskFailed):
		message := fmt.Sprintf("task %s of %s failed", a.Name, a.Handler)
		if said := a.Found.Condition(v1alpha1.TaskFailed).Message; said != "" {
			message += ": " + said
		}
		return state{verdict: policy.Rejected, message: text.Clip(message, policy.MaxMessage)}
	case mine && a.Found.IsTrue(v1alpha1.TaskReady):
		for key := range a.Found.Status.Annotations {
			if len(content.IsLabelKey(policy.OwnKey(a.Policy, key))) > 0 {
				message := fmt.Sprintf("task %s of %s: the annotation key %q in its status is not valid", a.Name, a.Handler, key)
				return state{verdict: policy.Rejected, message: text.Clip(message, policy.MaxMessage)}
			}
		}
		return state{verdict: policy.Allowed}
	case !bc.Now.Before(a.deadline(bc)) && a.Allow:
		return state{verdict: policy.Ignored}
	case !bc.Now.Before(a.deadline(bc)):
		return state{verdict: policy.TimedOut, message: text.Clip("still waiting for "+s.message, policy.MaxMessage-40) + fmt.Sprintf(" (timed out after %s)", a.Timeout)}
	case deleting:
		s.message = fmt.Sprintf("handler %s to undo an earlier attempt for %s", a.Handler, a.object())
	default:
		s.writes = !mine
	}
	s.message = text.Clip("waiting for "+s.message, policy.MaxMessage)
	return s
}

// awaited completes the sentence "waiting for …".
func (a *Asked) awaited() string {
	if a.Found != nil {
		if ready := a.Found.Condition(v1alpha1.TaskReady); ready != nil && ready.Message != "" {
			return fmt.Sprintf("task %s of %s: %s", a.Name, a.Handler, ready.Message)
		}
		if len(a.Found.Finalizers) > 0 || len(a.Found.Status.Conditions) > 0 {
			return fmt.Sprintf("handler %s to finish %s", a.Handler, a.object())
		}
	}
	return fmt.Sprintf("handler %s to begin %s", a.Handler, a.object())
}

func (a *Asked) deadline(bc *framework.BindContext) time.Time { return bc.Since.Add(a.Timeout) }

func (a *Asked) object() framework.Object {
	return framework.Object{Kind: v1alpha1.TaskKind.Kind, Name: a.name}
}

// Decide returns the results with the states of their tasks, and the writes of PreBind. The first task that failed or timed out
// rejects the bind. Otherwise the bind waits for the first task that is not ready; the message counts the others. It does not change the arguments.
func Decide(bc *framework.BindContext, results []policy.Result, asked []Asked) (decided []policy.Result, writes []string) {
	if len(asked) == 0 {
		return results, nil
	}
	decided = slices.Clone(results)
	needed, unsure := 0, 0 // Also of policies that wait: no task may begin for nothing.
	for i := range results {
		switch r := &results[i]; {
		case r.Audit:
		case r.Err != nil: // It need not match.
			unsure += r.Needs
		default:
			needed += r.Needs
		}
	}
	for i := range decided {
		r := &decided[i]
		switch {
		case r.Audit || len(r.Tasks) == 0:
		case needed > MaxTasks:
			r.Verdict, r.Rule, r.Message = policy.Rejected, "spec.tasks", fmt.Sprintf("the policies need more than %d tasks for the bind", MaxTasks)
		case needed+unsure > MaxTasks: // The bind waits for the policies that may match, or they reject it.
		default:
			writes = append(writes, apply(bc, r, asked[:len(r.Tasks)])...)
			asked = asked[len(r.Tasks):]
		}
	}
	return decided, writes
}

// apply sets the result of one policy by its tasks, and returns the writes.
func apply(bc *framework.BindContext, r *policy.Result, asked []Asked) (writes []string) {
	annotations := map[string]string{}
	waiting := 0
	for i := range asked {
		a := &asked[i]
		s := a.state(bc)
		rule := "spec.tasks[" + a.Name + "]"
		switch {
		case s.verdict.Rejects():
			if !r.Verdict.Rejects() {
				r.Verdict, r.Rule, r.Message, r.Until = s.verdict, rule, s.message, time.Time{}
			}
		case s.verdict == policy.Waiting:
			if waiting++; r.Verdict == policy.Allowed {
				r.Verdict, r.Rule, r.Message = s.verdict, rule, s.message
			}
			if end := a.deadline(bc); !r.Verdict.Rejects() && (r.Until.IsZero() || end.Before(r.Until)) {
				r.Until = end
			}
		case s.verdict == policy.Ignored:
			r.Waived = append(slices.Clip(r.Waived), a.Name)
		default:
			for key, value := range a.Found.Status.Annotations {
				annotations[policy.OwnKey(r.Policy, key)] = string(value)
			}
		}
		if s.writes {
			writes = append(writes, fmt.Sprintf("create %s for %s", a.object(), a.Handler))
		}
	}
	if r.Verdict == policy.Waiting && waiting > 1 {
		r.Message = text.Clip(r.Message, policy.MaxMessage-20) + fmt.Sprintf(" (and %d more)", waiting-1)
	}
	maps.Copy(annotations, r.Annotations) // The policy has the last word.
	if len(annotations) > 0 {
		r.Annotations = annotations
	}
	return writes
}
