// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package volumebinding is the PreBind plugin that binds a pod's PersistentVolumeClaims
// before the pod is bound. It does the work of Filter and PreBind of kube-scheduler's
// VolumeBinding for every scheduler. If the scheduler has already done that work, the plugin does
// nothing.
//
// SetupBindContextExtension reads a snapshot (read.go), and pure functions decide on it
// (plan.go, claims.go, provision.go, target.go). PreBind writes (write.go) and then waits
// until all claims are bound (wait.go, progress.go).
//
// The plugin never undoes a write. A provisioner can be creating the volume, and without
// selected-node or claimRef the volume would be leaked. The next attempt continues from the state
// in the API server.
package volumebinding

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/volumes"
)

// Name of the plugin.
const Name = "volumebinding"

// Plugin binds volumes; see New. It is safe for concurrent use.
type Plugin struct {
	h            framework.Handle
	free         *FreeVolumes
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

// New returns the plugin. The cache of the handle has the indexes of SetupIndexes. free
// follows its PersistentVolumes, and New makes it wake the handle's Changes. It
// starts nothing.
func New(h framework.Handle, free *FreeVolumes) *Plugin {
	p := &Plugin{h: h, free: free, reservations: &reservations{byClaim: map[types.UID]holder{}}}
	p.surveys = p.newSurveys()
	free.wake(h.Changes)
	return p
}

// Name implements framework.PreBinder.
func (*Plugin) Name() string { return Name }

var (
	// extension contains the objects that SetupBindContextExtension reads for PreFlight.
	extension = framework.NewExtensionKey[snapshot](Name)
	// planned contains the decision of PreFlight for PreBind.
	planned = framework.NewExtensionKey[plan](Name + "/plan")
)

// SetupBindContextExtension reads the pod's claims and everything that their binding
// depends on. A live reading in which no object serves a claim also makes sure that the
// cache, which lists these objects, is not behind the API server.
func (p *Plugin) SetupBindContextExtension(ctx context.Context, reader framework.Reader, bc *framework.BindContext) error {
	if len(volumes.ClaimsOf(bc.Pod)) == 0 {
		return nil
	}
	s, err := p.read(ctx, reader, bc)
	if err == nil && (bc.Live || !s.incomplete && p.asked(bc)) {
		s, err = p.surveyed(ctx, reader, bc, s)
	}
	if err != nil {
		return err
	}
	extension.Set(bc, s)
	return nil
}

// PreFlight plans the writes for the pod's claims. It rejects the same binds as Filter of
// kube-scheduler's VolumeBinding. Like VolumeRestrictions, it also rejects a second pod that uses
// a ReadWriteOncePod claim.
func (p *Plugin) PreFlight(bc *framework.BindContext) (framework.Next, error) {
	if len(volumes.ClaimsOf(bc.Pod)) == 0 {
		return framework.Skip, nil
	}
	s, err := extension.Get(bc)
	switch {
	case err != nil:
		return framework.Run, err
	case s.incomplete:
		return framework.Verify, nil
	}
	pl, err := findPodVolumes(s)
	if err != nil {
		return framework.Run, err
	}
	if pl.done() && (len(pl.exclusive) == 0 || bc.DryRun) {
		return framework.Skip, nil
	}
	pl.record(bc)
	planned.Set(bc, pl)
	return framework.Run, nil
}

// PreBind sets the claimRef of each matched volume, then selected-node of each claim that
// has to be provisioned, and waits until all claims are bound. Last, it reserves the
// ReadWriteOncePod claims.
func (p *Plugin) PreBind(ctx context.Context, bc *framework.BindContext) error {
	pl, err := planned.Get(bc)
	if err != nil {
		return err
	}
	// The wait can take minutes, and the snapshot is not needed any more.
	extension.Set(bc, snapshot{})
	if err := p.write(ctx, bc.Node.Name, &pl); err != nil {
		return err
	}
	if err := p.wait(ctx, bc, pl); err != nil {
		return err
	}
	return p.reserveExclusive(ctx, bc, pl.exclusive)
}

// PreBindRollBack releases the ReadWriteOncePod claims. It leaves claims and volumes as
// they are; see the package's comment.
func (p *Plugin) PreBindRollBack(_ context.Context, bc *framework.BindContext) error {
	p.reservations.release(holderOf(bc))
	return nil
}

// PostBind ends the reservations: from now on, a list of pods shows which pod uses the
// ReadWriteOncePod claims.
func (p *Plugin) PostBind(_ context.Context, bc *framework.BindContext) {
	p.reservations.release(holderOf(bc))
}
