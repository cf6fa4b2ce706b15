// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/attempt"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/runner"
)

// services are what all calls of an engine share.
type services struct {
	reader
	runner   *runner.Runner
	attempts *attempt.Set
	waits    waits
	seats    seating
	// replica and term are those of Options.
	replica string
	term    func() (int64, bool)
	clock   clock.WithDelayedExecution
	// anyAttempt is an annotation as long as that of every attempt. It is never changed.
	anyAttempt map[string]string
	// draining is closed by Engine.Drain.
	draining chan struct{}
}

// call is one Request on its way through the engine.
type call struct {
	*services
	Request
	// settings are those of the engine, and policy what they say of the
	// pod's namespace.
	settings *Settings
	policy   policy

	key  attempt.Key
	pod  *corev1.Pod
	node *corev1.Node
	// refreshed is the context whose pod and node are live, or nil.
	refreshed *framework.BindContext
	// plugins are those that take part.
	plugins []framework.PreBinder
	budget  time.Duration
	began   time.Time
	// preview is the answer if no plugin has anything to do.
	preview Decision
	// joined is the attempt that the call began or joined, or nil.
	joined *attempt.Attempt
	// held is set if the call was held to the end of its hold.
	held bool
	// contexts are those whose warnings the answer shows.
	contexts []*framework.BindContext
}

// context returns that of an attempt for this call.
func (c *call) context(id string) *framework.BindContext {
	now := c.clock.Now()
	bc := &framework.BindContext{
		Pod: c.pod, Node: c.node, Binding: c.Binding, User: c.User, Attempt: id, DryRun: c.DryRun, Now: now, Since: now,
	}
	c.contexts = append(c.contexts, bc)
	return bc
}

// warnings returns the warnings of plugins, each once, within the limits of a decision.
func (c *call) warnings() []string {
	var all []string
	for _, bc := range c.contexts {
		for _, w := range bc.Warnings() {
			if w = runner.Clip(w, maxMessage); len(all) < maxWarnings && !slices.Contains(all, w) {
				all = append(all, w)
			}
		}
	}
	return all
}

// attemptID returns the ID of the attempt that the call began or joined, or "".
func (c *call) attemptID() string {
	if c.joined == nil {
		return ""
	}
	return c.joined.ID()
}

// step is one of the engine's own steps on this call.
func (c *call) step(name, id string) runner.Step {
	return runner.Step{Name: name, Pod: c.Pod, Node: c.key.Node, Attempt: id}
}

// before returns the earlier calls for the bind.
func (c *call) before() waited { return c.waits.before(c.key, c.began) }

// isClosed returns whether a channel that carries no values is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
