// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package device is the PreBind plugin that grants each device of a node to one pod at a
// time, across all schedulers. The scheduler or the user selects the devices in annotations
// of the Binding or the pod. The plugin grants them, or rejects the bind and names the
// holder.
//
// All grants of a node are in one record of the ledger, so that replicas and schedulers
// cannot grant a device twice. Decisions are pure functions of the record and the
// annotations (record.go, ask.go). reads.go reads their input.
//
// A grant belongs to an attempt until the pod is bound, and then to the pod until the pod is
// gone or finished. The plugin always checks that with the API server. No grant expires.
package device

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/ledger"
)

// Plugin grants devices. It is safe for concurrent use.
type Plugin struct {
	h       framework.Handle
	args    *Arguments
	records *ledger.Store[string, *record]
	sights  sights
}

var (
	_ framework.PreBinder           = (*Plugin)(nil)
	_ framework.PreFlighter         = (*Plugin)(nil)
	_ framework.BindContextExtender = (*Plugin)(nil)
	_ framework.RollBacker          = (*Plugin)(nil)
	_ framework.OnRequest           = (*Plugin)(nil)
	_ framework.Confirmer           = (*Plugin)(nil)
	_ framework.PostBinder          = (*Plugin)(nil)
	_ framework.Recoverer           = (*Plugin)(nil)
	_ framework.Tidier              = (*Plugin)(nil)
)

// New returns the plugin, or an error if the arguments are invalid. It starts nothing. The
// cache of the handle needs the indexes of SetupIndexes.
func New(h framework.Handle, args *Arguments) (*Plugin, error) {
	for _, p := range args.Validate() {
		return nil, fmt.Errorf("%s: %w", p.Field, p.Err)
	}
	return &Plugin{
		h: h, args: args, sights: sights{of: map[string]sight{}},
		records: ledger.Open(h, ledger.Kind[string, *record]{
			Component: recordValue, Name: recordName, Decode: decode,
			Missing: func(ctx context.Context, node string) (*record, error) { return restore(ctx, h.Live, node) },
		}),
	}, nil
}

// Name implements framework.PreBinder.
func (*Plugin) Name() string { return Name }

// RequestedBy implements framework.OnRequest: schedulers annotate the Binding, users annotate
// the pod.
func (*Plugin) RequestedBy() framework.Source { return framework.ByBindingOrPod }

// present contains the record of the node. If it was read from the API server, it does not
// contain holders whose pods are gone.
var present = framework.NewExtensionKey[*record](Name + "/record")

// SetupBindContextExtension reads the record of the node, if the bind requests anything.
func (p *Plugin) SetupBindContextExtension(ctx context.Context, reader framework.Reader, bc *framework.BindContext) error {
	a, err := p.ask(bc)
	if err != nil || a.nothing() {
		return nil //nolint:nilerr // PreFlight returns the error.
	}
	rec, err := p.read(ctx, reader, bc)
	if err == nil && bc.Live {
		// The cache contains only pending pods.
		err = dropGone(ctx, reader, rec, bc, a)
	}
	present.Set(bc, rec)
	return err
}

// PreFlight rejects a bind that requests invalid devices, or devices that another pod holds.
// It skips a bind that PreBind has already prepared.
func (p *Plugin) PreFlight(bc *framework.BindContext) (framework.Next, error) {
	a, err := p.ask(bc)
	if err != nil {
		return framework.Run, err
	}
	if a.nothing() {
		return framework.Skip, nil
	}
	bc.Has(a.list()...)
	pin(bc)
	rec, err := present.Get(bc)
	if err != nil {
		return framework.Run, err
	}
	if rec.prepared(bc.Pod.UID, bc.Attempt, a, p.lasting(bc.Now)) {
		if bc.Live {
			return framework.Skip, nil
		}
		return framework.Verify, nil
	}
	if err := refuseConflicts(rec, bc, a); err != nil {
		return framework.Run, err
	}
	if len(a.devices) > 0 {
		bc.Intend("%s would grant %s of Node %s to the pod", Name, a.devices, bc.Node.Name)
	}
	if a.lock {
		bc.Intend("%s would lock Node %s for the bind, and wait while another bind holds the lock", Name, bc.Node.Name)
		if rec.lockedByOther(bc.Pod.UID) {
			bc.ExpectWait(waitingFor(rec.Lock, bc))
		}
	}
	return framework.Run, nil
}

// pin copies the pod's own requests to the Binding. The bound pod then lists its grant even
// if its annotations are edited during the bind.
func pin(bc *framework.BindContext) {
	for key, parameter := range framework.Parameters(Name, framework.ByBindingOrPod, bc.Binding, bc.Pod) {
		if parameter.On.Kind == "Pod" {
			bc.Annotate(Name, key, parameter.Value)
		}
	}
}

// errUnsure makes the caller repeat the call with data from the API server.
var errUnsure = errors.New("the cache can be behind the API server")

// PreBind grants the devices and takes the node lock, if requested, in one write. It first
// waits until no other bind holds the lock.
func (p *Plugin) PreBind(ctx context.Context, bc *framework.BindContext) error {
	a, err := p.ask(bc)
	if err != nil {
		return err
	}
	// looked is the lock holder whose pod was read from the API server. One read is enough:
	// when the bind of the holder ends, its attempts or the sweep change the record.
	var looked types.UID
	return framework.Await(ctx, p.h, bc, func(ctx context.Context, _ framework.Reader) (framework.Waiting, error) {
		var waiting framework.Waiting
		err := p.records.Update(ctx, bc.Node.Name, func(rec *record, live bool) (bool, error) {
			waiting = framework.Waiting{}
			if rec.prepared(bc.Pod.UID, bc.Attempt, a, p.lasting(p.h.Clock.Now())) {
				return false, nil
			}
			if rec.isBound(bc.Pod.UID) {
				return false, framework.Stale(podObject(bc), "already bound to node %s", bc.Node.Name).Advise("do not retry")
			}
			if err := dropGone(ctx, p.h.Live, rec, bc, a); err != nil {
				return false, err
			}
			if err := refuseConflicts(rec, bc, a); err != nil {
				return false, err
			}
			if a.lock {
				left, err := p.locked(ctx, rec, bc, live, looked)
				if err != nil {
					return false, err
				}
				if left > 0 {
					looked = rec.Lock.UID
					waiting = waitingFor(rec.Lock, bc)
					waiting.Until = p.h.Clock.Now().Add(left)
					return false, nil
				}
				rec.take(bc.Pod, bc.Attempt, p.h.Clock.Now().Add(p.args.NodeLockTimeout))
			}
			rec.grant(bc.Pod, bc.Attempt, a.devices)
			return true, nil
		})
		return waiting, err
	}, p.records.Ref(bc.Node.Name))
}

// locked returns how long another pod can keep the node lock at most, or 0 if this bind can
// take it. A pod loses the lock when its bind ends. locked does not read the pod of the
// holder again if it has already been looked at.
func (p *Plugin) locked(ctx context.Context, rec *record, bc *framework.BindContext, live bool, looked types.UID) (time.Duration, error) {
	now := p.h.Clock.Now()
	left := p.args.NodeLockTimeout - now.Sub(p.sights.since(rec, now, 2*p.args.NodeLockTimeout))
	switch {
	case !rec.lockedByOther(bc.Pod.UID) || left <= 0:
		return 0, nil
	case rec.Lock.UID == looked:
		return left, nil
	case !live:
		return 0, errUnsure
	}
	at, err := look(ctx, p.h.Live, bc.Node.Name, rec.Lock.Pod, rec.Lock.UID)
	if err != nil || at != framework.Pending {
		return 0, err
	}
	return left, nil
}

// lasting returns the time until which a lock must last for a bind that is allowed now.
func (p *Plugin) lasting(now time.Time) time.Time {
	return now.Add(min(framework.BindSettles, p.args.NodeLockTimeout/2))
}

// Confirm checks that the grant and the lock still exist. While other plugins prepared the
// bind, an operator can have edited the record, or the lock can have expired. Confirm
// accepts only a record from the API server, because nothing checks the record afterwards.
func (p *Plugin) Confirm(ctx context.Context, reader framework.Reader, bc *framework.BindContext) error {
	a, err := p.ask(bc)
	if err != nil || a.nothing() {
		return err
	}
	if !bc.Live {
		return errUnsure
	}
	rec, err := p.read(ctx, reader, bc)
	if err != nil {
		return err
	}
	switch {
	case rec.prepared(bc.Pod.UID, bc.Attempt, a, p.lasting(p.h.Clock.Now())):
		return nil
	case rec.granted(bc.Pod.UID, bc.Attempt, a):
		return framework.Wait(nodeObject(bc), "the node lock of this bind expired").
			Advise("retry the Binding, or raise --device-node-lock-timeout if other plugins need more time")
	default:
		return framework.Wait(p.records.Ref(bc.Node.Name).Object(), "the grant of this bind was removed").
			Advise("retry the Binding")
	}
}

// PreBindRollBack removes the grant and the lock of this attempt.
func (p *Plugin) PreBindRollBack(ctx context.Context, bc *framework.BindContext) error {
	var released, unlocked bool
	err := p.records.Update(ctx, bc.Node.Name, func(rec *record, live bool) (bool, error) {
		released, unlocked = rec.release(bc.Pod.UID, bc.Attempt), rec.unlock(bc.Pod.UID, bc.Attempt)
		if !released && !unlocked && !live {
			// The cache can be behind a write of another replica, or behind a write whose
			// response was lost.
			return false, errUnsure
		}
		return released || unlocked, nil
	})
	if err != nil {
		return err
	}
	if released {
		bc.Undid("released its devices")
	}
	if unlocked {
		bc.Undid("released the node lock")
	}
	return nil
}

// ask returns the requests of the bind.
func (p *Plugin) ask(bc *framework.BindContext) (ask, error) {
	a, err := parse(framework.Parameters(Name, framework.ByBindingOrPod, bc.Binding, bc.Pod))
	if err != nil {
		return ask{}, err
	}
	a.lock = a.lock || p.args.NodeLocks && len(a.devices) > 0
	return a, nil
}

// refuseConflicts returns an error if other pods hold requested devices.
func refuseConflicts(rec *record, bc *framework.BindContext, a ask) error {
	if held := rec.conflicts(bc.Pod.UID, a.devices); len(held) > 0 {
		return framework.Refuse(nodeObject(bc), "%s", describe(held)).Advise("choose other devices or another node")
	}
	return nil
}

func waitingFor(l *lock, bc *framework.BindContext) framework.Waiting {
	return framework.Waiting{Object: nodeObject(bc), For: fmt.Sprintf("the lock that pod %s holds on the node", l.Pod)}
}

func podObject(bc *framework.BindContext) framework.Object {
	return framework.RefTo(&corev1.Pod{}, bc.Pod.Namespace, bc.Pod.Name).Object()
}

func nodeObject(bc *framework.BindContext) framework.Object {
	return framework.RefTo(&corev1.Node{}, "", bc.Node.Name).Object()
}
