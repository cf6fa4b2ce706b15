// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package attempt

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/runner"
)

// Causes of the early end of a round or an attempt.
const (
	// ErrBudgetSpent: it took longer than its budget.
	ErrBudgetSpent = runner.Cause("timed out")
	// ErrStopped: the process ends. There is no rollback, because the repeated call reaches
	// another replica, which continues.
	ErrStopped = runner.Cause("this replica is shutting down")
	// errPodGone: the pod was deleted, or bound without this attempt.
	errPodGone = runner.Cause("the pod is deleted, terminating or already bound")
	// errSuperseded: the scheduler has chosen another node for the pod.
	errSuperseded = runner.Cause("the scheduler chose another node")
	// errOtherParameters: the scheduler posts the Binding with other parameters of
	// the plugins.
	errOtherParameters = runner.Cause("the Binding was posted again with different parameters")
	// errLeaseLost: another replica may have rolled back the writes of the attempt.
	errLeaseLost = runner.Cause("this replica did not renew its lease in time")
	// errAbandoned: the client stopped calling.
	errAbandoned = runner.Cause("the client stopped retrying")
)

// Round is one pass of an attempt through PreBind; see NewRound.
type Round struct {
	// Context is that of the bind. Its Attempt is the attempt's ID.
	Context *framework.BindContext
	// Plugins are those whose PreBind runs, in order, and Confirm those whose Confirm runs
	// after all PreBinds have succeeded.
	Plugins, Confirm []framework.PreBinder

	// ctx ends when the round is canceled; see Set.giveUp.
	ctx     context.Context //nolint:containedctx // A round is an operation in progress, and this is how it is ended.
	cancel  context.CancelCauseFunc
	givenUp bool // Guarded by Set.mu.
	// done is closed when the round is over. Only then err may be read.
	done chan struct{}
	err  *framework.Error
}

// NewRound returns a round that Set.Start or Set.Repeat can begin.
func NewRound(bc *framework.BindContext, plugins, confirm []framework.PreBinder) *Round {
	return &Round{Context: bc, Plugins: plugins, Confirm: confirm, done: make(chan struct{})}
}

// Done returns a channel that is closed when the round is over.
func (r *Round) Done() <-chan struct{} { return r.done }

// Err returns the error of a round that is over. Call it only after Done is closed.
func (r *Round) Err() *framework.Error { return r.err }

// OverBudget returns whether the round was canceled because the budget is spent. The plugin may
// still run.
func (r *Round) OverBudget() bool { return errors.Is(context.Cause(r.ctx), ErrBudgetSpent) }

// Pod returns the name of the pod.
func (r *Round) Pod() types.NamespacedName {
	return types.NamespacedName{Namespace: r.Context.Pod.Namespace, Name: r.Context.Pod.Name}
}

// about is the pod as the object of an error.
func (r *Round) about() framework.Object {
	return framework.Object{Kind: "Pod", Namespace: r.Context.Pod.Namespace, Name: r.Context.Pod.Name}
}

// PodChanged returns an error that makes the client call again, with the changed pod.
func (r *Round) PodChanged() *framework.Error {
	return framework.Wait(r.about(), "changed during PreBind").Advise("retry the Binding")
}

// Stopped returns the answer to calls that wait while the process ends.
func (r *Round) Stopped() *framework.Error {
	err := framework.Wait(r.about(), "%v", ErrStopped).Because(ErrStopped).Advise("retry the Binding, another replica continues with it")
	err.Plugin = framework.Binder
	return err
}

// close ends the round, once.
func (r *Round) close(err *framework.Error) {
	select {
	case <-r.done:
	default:
		r.err = err
		close(r.done)
	}
}
