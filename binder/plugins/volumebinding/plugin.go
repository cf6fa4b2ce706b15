// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package volumebinding is the PreBind plugin that gives a pod its volumes
// before it is bound: it does at admission what kube-scheduler's VolumeBinding
// does in its PreBind, for every scheduler, and finds everything in place when
// the scheduler has done it already.
//
// It decides on what it read by pure functions (plan.go, claims.go,
// provision.go, target.go, progress.go), and nothing is ever undone: a volume
// may be in the making, and taking back selected-node or a claimRef would leak
// it. The next attempt goes on from what the API server holds.
package volumebinding

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// Name of the plugin.
const Name = "volumebinding"

// Options of the plugin. All fields but Selections and Clock are required.
type Options struct {
	// Cached reads from a cache with the indexes of SetupIndexes. It holds what
	// the Registration watches, pods without a node, and nodes.
	Cached client.Reader
	// Live reads from the API server, before anything is refused or found missing
	// by what the cache says, and what the cache does not hold.
	Live client.Reader
	// Writer patches claims and volumes.
	Writer Patcher
	// Changes wakes the plugin when an object of the cache changes.
	Changes *framework.Hub
	// Free follows the PersistentVolumes of Cached. The plugin makes it wake Changes.
	Free *FreeVolumes
	// Selections follows the PersistentVolumeClaims of Cached. Without it, a wait counts from
	// the first call that this replica receives.
	Selections *Selections
	// Clock limits the rate of lists. It is the real one by default.
	Clock clock.PassiveClock
}

// Getter reads one object by its key; client.Reader is one.
type Getter interface {
	Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error
}

// Patcher patches one object; client.Client is one.
type Patcher interface {
	Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error
}

// Plugin binds volumes; see New.
type Plugin struct {
	cached       client.Reader
	live         client.Reader
	writer       Patcher
	changes      *framework.Hub
	free         *FreeVolumes
	selections   *Selections
	surveys      map[string]*survey
	reservations *reservations
}

var (
	_ framework.PreBinder           = (*Plugin)(nil)
	_ framework.PreFlighter         = (*Plugin)(nil)
	_ framework.BindContextExtender = (*Plugin)(nil)
	_ framework.RollBacker          = (*Plugin)(nil)
	_ framework.PostBinder          = (*Plugin)(nil)
)

// New checks the options and returns the plugin. It starts nothing.
func New(o Options) (*Plugin, error) {
	if o.Cached == nil || o.Live == nil || o.Writer == nil || o.Changes == nil || o.Free == nil {
		return nil, errors.New(Name + ": Cached, Live, Writer, Changes and Free are required")
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	p := &Plugin{
		cached: o.Cached, live: o.Live, writer: o.Writer, changes: o.Changes, free: o.Free, selections: o.Selections,
		reservations: &reservations{byClaim: map[types.UID]holder{}},
	}
	p.surveys = p.newSurveys(o.Clock)
	o.Free.wake(o.Changes)
	return p, nil
}

// Name implements framework.PreBinder.
func (*Plugin) Name() string { return Name }

// planned hands the plan from PreFlight to PreBind.
var planned = framework.NewExtensionKey[plan](Name + "/plan")

// decided is the decision that SetupBindContextExtension leaves for PreFlight.
var decided = framework.NewExtensionKey[decision](Name + "/decision")

type decision struct {
	next framework.Next
	err  error
}

// SetupBindContextExtension reads and decides. It asks the API server itself before it
// rejects anything, so that a second look gives the same decision.
func (p *Plugin) SetupBindContextExtension(ctx context.Context, _ framework.Reader, bc *framework.BindContext) error {
	if bc.Live {
		return nil
	}
	next, err := p.preFlight(ctx, bc)
	decided.Set(bc, decision{next: next, err: err})
	return nil
}

// PreFlight returns the decision.
func (p *Plugin) PreFlight(bc *framework.BindContext) (framework.Next, error) {
	d, err := decided.Get(bc)
	if err != nil {
		return framework.Run, err
	}
	return d.next, d.err
}

// preFlight finds out what is to be written for the pod's claims. It refuses
// what kube-scheduler's VolumeBinding refuses in its Filter, and the use of a
// ReadWriteOncePod claim by a second pod, as its VolumeRestrictions does.
func (p *Plugin) preFlight(ctx context.Context, bc *framework.BindContext) (framework.Next, error) {
	if len(claimRefs(bc.Pod)) == 0 {
		return framework.Skip, nil
	}
	pl, err := p.plan(ctx, bc, false)
	if framework.IsKind(err, framework.KindRefuse) || framework.IsKind(err, framework.KindWait) {
		// The cache may be behind what the scheduler saw: ask the API server.
		pl, err = p.plan(ctx, bc, true)
	}
	if len(lacks(err)) > 0 {
		// What there is to choose from is known from the cache only.
		if err := p.caughtUp(ctx, bc, err); err != nil {
			return framework.Run, err
		}
		pl, err = p.plan(ctx, bc, true)
	} else {
		p.forget(bc)
	}
	if err == nil {
		err = p.checkExclusive(ctx, bc.Pod, pl.exclusive)
	}
	if err != nil {
		return framework.Run, err
	}
	if pl.done() && (len(pl.exclusive) == 0 || bc.DryRun) {
		return framework.Skip, nil
	}
	pl.tell(bc, p.selections)
	planned.Set(bc, pl)
	return framework.Run, nil
}

// plan reads and decides.
func (p *Plugin) plan(ctx context.Context, bc *framework.BindContext, live bool) (plan, error) {
	s, err := p.snapshot(ctx, bc, live)
	if err != nil {
		return plan{}, err
	}
	return decide(s)
}

// PreBind writes the claimRef of each volume that was matched, then
// selected-node of each claim that has to be provisioned, and waits until all
// claims are bound. Last of all, it reserves the ReadWriteOncePod claims.
func (p *Plugin) PreBind(ctx context.Context, bc *framework.BindContext) error {
	pl, err := planned.Get(bc)
	if err != nil {
		return err
	}
	if err := p.write(ctx, bc.Node.Name, &pl); err != nil {
		return err
	}
	if err := p.wait(ctx, bc, pl); err != nil {
		return err
	}
	return p.reserveExclusive(ctx, bc, pl.exclusive)
}

// PreBindRollBack leaves claims and volumes as they are; see the package's
// comment. Another pod may have the ReadWriteOncePod claims now.
func (p *Plugin) PreBindRollBack(_ context.Context, bc *framework.BindContext) error {
	p.reservations.release(holderOf(bc))
	return nil
}

// PostBind ends the reservations: from now on, a list of pods shows who uses the
// ReadWriteOncePod claims.
func (p *Plugin) PostBind(_ context.Context, bc *framework.BindContext) {
	p.reservations.release(holderOf(bc))
}
