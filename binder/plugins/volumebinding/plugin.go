// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package volumebinding is the PreBind plugin that binds a pod's PersistentVolumeClaims
// before the pod is bound. It does the work of Filter and PreBind of kube-scheduler's
// VolumeBinding for every scheduler. If the scheduler has already done that work, the plugin does
// nothing.
//
// SetupBindContextExtension reads a snapshot (read.go), and pure functions decide on it
// (plan.go, claims.go, match.go, provision.go). PreBind writes (write.go). The bind then waits until
// all claims are bound.
//
// The plugin never undoes a write to a claim or a volume. A provisioner can be creating the volume,
// and without selected-node or claimRef the volume would be leaked. The next attempt continues from
// the state in the API server. Only the reservations of ReadWriteOncePod claims are released
// (exclusive.go).
package volumebinding

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/ledger"
	"github.com/prebind/prebind/internal/volumes"
)

// Name of the plugin.
const Name = "volumebinding"

// Plugin binds volumes; see New. It is safe for concurrent use.
type Plugin struct {
	h       framework.Handle
	free    *FreeVolumes
	records *ledger.Store[types.UID, *record]
}

var (
	_ framework.PreBinder           = (*Plugin)(nil)
	_ framework.BindContextExtender = (*Plugin)(nil)
)

// New returns the plugin. free
// follows its PersistentVolumes, and New makes it call Handle.Wake. It starts nothing.
func New(h framework.Handle, free *FreeVolumes) *Plugin {
	free.changed = h.Wake
	return &Plugin{h: h, free: free, records: openRecords(h)}
}

// Name implements framework.Plugin.
func (*Plugin) Name() string { return Name }

// SetupBindContextExtension reads the pod's claims and everything that their binding
// depends on, and plans the binding. It rejects the same binds as Filter of kube-scheduler's VolumeBinding. The engine keeps the
// context of the last PreBind until the pod is bound, so the extension is the plan with its few objects instead of the snapshot.
func (p *Plugin) SetupBindContextExtension(ctx context.Context, cache framework.Reader, bc *framework.BindContext) error {
	refs := volumes.ClaimsOf(bc.Pod)
	if len(refs) == 0 { // Most pods have no claims.
		framework.Extend(bc, plan{})
		return nil
	}
	s, err := p.read(ctx, cache, bc, refs)
	if err != nil {
		return err
	}
	pl, rejected := findPodVolumes(ctx, s)
	// The index of free volumes reads none of them through the cache, so their changes would not
	// wake the bind.
	for _, m := range pl.static {
		now, err := framework.Get(ctx, cache, &corev1.PersistentVolume{}, "", m.volume.Name, volumes.Volumes)
		if err != nil {
			return err
		}
		if now == nil || now.ResourceVersion != m.volume.ResourceVersion {
			pl.wait = framework.Wait{Object: framework.ObjectOf(m.volume), For: "the volume to be read again", Until: bc.Now}
		}
	}
	framework.Extend(bc, pl)
	return rejected
}

// PreFlight returns the writes and the first wait for the pod's claims.
func (*Plugin) PreFlight(bc *framework.BindContext) (framework.Verdict, error) {
	p, err := framework.Extension[plan](bc)
	if err != nil {
		return framework.Verdict{}, err
	}
	v := framework.Verdict{Wait: p.wait}
	waits := func(o client.Object, format string, args ...any) {
		if v.Wait == (framework.Wait{}) {
			v.Wait = framework.Wait{Object: framework.ObjectOf(o), For: fmt.Sprintf(format, args...)}
		}
	}
	writes := func(format string, args ...any) {
		v.Writes = append(v.Writes, fmt.Sprintf(format, args...))
	}
	for _, r := range p.exclusive {
		if other, ok := r.other(bc); ok {
			waits(r.claim, "the bind of pod %s, which uses the ReadWriteOncePod claim", other)
		}
	}
	if v.Wait != (framework.Wait{}) {
		return v, nil
	}
	for _, r := range p.exclusive {
		// Without Written, the reservation can be older than the list of the pods that use the claim.
		if !bc.Written || !r.by(bc) {
			writes("reserve the ReadWriteOncePod %s", describe(r.claim))
		}
	}
	reservations := len(v.Writes)
	for _, m := range p.static {
		waits(m.claim, "the PersistentVolume controller to bind it to PersistentVolume %s", m.volume.Name)
		if _, changed, err := volume.GetBindVolumeToClaim(m.volume, m.claim); err != nil || changed {
			writes("set the claimRef of PersistentVolume %s to %s and wait until the claim is bound", m.volume.Name, describe(m.claim))
		}
	}
	for _, claim := range p.dynamic {
		waits(claim, "provisioning on %s%s", bc.Node.Name, by(claim))
		if claim.Annotations[volume.AnnSelectedNode] == "" {
			writes("set selected-node of %s to %s and wait for provisioning", describe(claim), bc.Node.Name)
		}
	}
	v.Permanent = len(v.Writes) > reservations
	for _, claim := range p.late {
		waits(claim, "its PersistentVolume %s", claim.Spec.VolumeName)
	}
	return v, nil
}

// PreBind reserves the ReadWriteOncePod claims, sets the claimRef of each matched volume, and then
// selected-node of each claim that has to be provisioned.
func (p *Plugin) PreBind(ctx context.Context, bc *framework.BindContext) error {
	pl, err := framework.Extension[plan](bc)
	if err != nil {
		return err
	}
	if err := p.reserve(ctx, bc, pl.exclusive); err != nil {
		return err
	}
	return p.write(ctx, bc, pl)
}

// PreBindRollBack releases the attempt's reservations of ReadWriteOncePod claims. It leaves claims and
// volumes as they are; see the package's comment.
func (p *Plugin) PreBindRollBack(ctx context.Context, m framework.Mark) error {
	changed := func(err error) bool { return errors.Is(err, ledger.ErrChanged) } // By another replica that rolls back its attempt.
	return retry.OnError(retry.DefaultRetry, changed, func() error {
		return p.release(ctx, p.h.Live, m.PodUID, func(attempt string) bool { return attempt == m.Attempt })
	})
}

// PostBind releases the reservations of the pod: from now on, a list of pods shows which pod uses the
// ReadWriteOncePod claims.
func (p *Plugin) PostBind(ctx context.Context, m framework.Mark, _ *corev1.Pod) error {
	return p.release(ctx, p.h.Cached, m.PodUID, func(string) bool { return true })
}
