// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"strings"
	"time"

	apitypes "k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/policy/v1alpha1"
)

// Problem is the reason why a policy does not compile.
type Problem struct {
	// Reason is a reason of v1alpha1.ConditionReady.
	Reason string
	// Field is the path of the field, such as spec.validations[0].expression. It is empty if it is not known.
	Field string
	// Message describes the problem, and how to fix it.
	Message string
}

// Error implements error.
func (p *Problem) Error() string { return strings.TrimPrefix(p.Field+": "+p.Message, ": ") }

// problems are all problems of a policy.
type problems []Problem

// Error implements error.
func (all problems) Error() string {
	texts := make([]string, len(all))
	for i, p := range all {
		texts[i] = p.Error()
	}
	return strings.Join(texts, "\n")
}

// Problems returns the problems of an error of Compile.
func Problems(err error) []Problem {
	if all, ok := errors.AsType[problems](err); ok {
		return all
	}
	return []Problem{{Reason: v1alpha1.ReasonCompileError, Message: err.Error()}}
}

// Compiled is a compiled policy.
type Compiled struct {
	name   string
	uid    apitypes.UID
	audit  bool
	ignore bool
	// needs is the number of tasks, also if the policy cannot be evaluated.
	needs int

	// broken is the reason why the policy cannot be evaluated, or nil.
	broken error

	match       matcher
	conditions  []rule
	resources   map[string]*declared
	variables   map[string]*expression
	validations []rule
	waits       []rule
	tasks       []task
	annotations []mutation
	labels      []mutation

	reads    []*Resource
	warnings []v1alpha1.ExpressionWarning
}

// rule is an expression that must be true. Waits also have a name and a timeout.
type rule struct {
	// path identifies the rule in results.
	path string
	*expression
	message *expression
	// text is the message without a message expression.
	text    string
	name    string
	timeout time.Duration
	allow   bool
}

// defaultTimeout is that of the CustomResourceDefinition, for policies that do not come from the API server. The empty values of other fields are their
// defaults.
const defaultTimeout = 2 * time.Minute

// task is a task with the expressions of its parameters.
type task struct {
	Task
	path       string
	parameters []mutation
}

// mutation is an annotation, a label, or a parameter of a task.
type mutation struct {
	path, key string
	*expression
}

// declared is a resource with the expressions for its name and namespace.
type declared struct {
	*Resource
	name, namespace *expression
}

// Name returns the name of the policy.
func (c *Compiled) Name() string { return c.name }

// Err returns the reason why the policy cannot be evaluated, or nil; see Broken.
func (c *Compiled) Err() error { return c.broken }

// Warnings returns the problems that type checking found in parts that are checked at runtime only, such as
// fields of custom resources.
func (c *Compiled) Warnings() []v1alpha1.ExpressionWarning { return c.warnings }

// Reads returns what the policy reads in addition to the pod, the node and the Namespace.
func (c *Compiled) Reads() []*Resource { return c.reads }
