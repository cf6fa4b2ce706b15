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
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/ledger"
	"github.com/prebind/prebind/internal/podstate"
)

// Plugin grants devices. It is safe for concurrent use.
type Plugin struct {
	*framework.Decider
	h       framework.Handle
	args    *Arguments
	records *ledger.Store[string, *record]
	// seenLocks contains since when this process has seen the lock of a node unchanged, for locks that a bind waits for.
	// Locks expire by this duration and not by the time in the lock, because that is from the clock of another machine.
	// A fast clock would take every lock from its holder.
	seenLocks *utilcache.Expiring
	// round belongs to Tidy.
	round podstate.Round
}

var (
	_ framework.PreBinder = (*Plugin)(nil)
	_ framework.OnRequest = (*Plugin)(nil)
	_ framework.Tidier    = (*Plugin)(nil)
)

// New returns the plugin. It starts nothing.
func New(h framework.Handle, args *Arguments) *Plugin {
	p := &Plugin{
		h: h, args: args, seenLocks: utilcache.NewExpiringWithClock(h.Clock),
		records: ledger.Open(h, ledger.Kind[string, *record]{
			Component: component, Value: unconfirmed, Name: recordName, Decode: decode,
			Missing: func(ctx context.Context, node string) (*record, error) { return restore(ctx, h.Live, node) },
		}),
	}
	p.Decider = framework.NewPlugin(Name, p.decide)
	return p
}

// OnRequest implements framework.OnRequest: schedulers annotate the Binding, users annotate
// the pod.
func (*Plugin) OnRequest() {}

// decide rejects a bind that requests invalid devices, and waits while another bind holds the node lock. A bind that requests
// devices of other pods continues with PreBind, because these pods may be gone, and the cache contains only pending pods.
func (p *Plugin) decide(ctx context.Context, cache framework.Reader, bc *framework.BindContext) (framework.Verdict, error) {
	a, err := p.ask(bc)
	if err != nil || a.nothing() {
		return framework.Verdict{}, err
	}
	rec := newRecord(bc.Node.Name)
	found, err := p.records.Get(ctx, cache, bc.Node.Name)
	if err != nil {
		return framework.Verdict{}, err
	}
	if found != nil {
		rec = found.Record
	}
	v := framework.Verdict{Devices: a.devices.list(), Annotations: pinned(bc)}
	if rec.prepared(bc.Pod.UID, bc.Attempt, a, bc.Now.Add(framework.BindSettles)) {
		return v, nil
	}
	if bc.DryRun { // As in PreBind.
		if found == nil {
			rec, err = restore(ctx, p.h.Live, bc.Node.Name)
		}
		if err == nil {
			err = makeRoom(ctx, p.h.Live, rec, bc, a, map[types.UID]bool{})
		}
		if err != nil {
			return v, err
		}
	}
	// If another pod has a device, PreBind rejects the bind, before volumebinding writes what cannot be rolled back.
	if left := p.locked(rec, bc.Pod.UID, bc.Now); a.lock && left > 0 && len(rec.conflicts(bc.Pod.UID, a.devices)) == 0 {
		v.Wait = framework.Wait{Object: framework.ObjectOf(bc.Node), For: lockOf(rec.Lock), Until: bc.Now.Add(left)}
		return v, nil
	}
	if len(a.devices) > 0 {
		v.Writes = append(v.Writes, fmt.Sprintf("grant %s of Node %s to the pod", a.devices, bc.Node.Name))
	}
	if a.lock {
		v.Writes = append(v.Writes, fmt.Sprintf("lock Node %s for the bind", bc.Node.Name))
	}
	return v, nil
}

// pinned returns the pod's own requests, for the Binding. The bound pod then lists its grant even
// if its annotations are edited during the bind.
func pinned(bc *framework.BindContext) map[string]string {
	own := map[string]string{}
	for key, parameter := range framework.Parameters(Name, bc.Binding, bc.Pod) {
		if parameter.On.Kind == "Pod" {
			own[key] = parameter.Value
		}
	}
	return own
}

// PreBind grants the devices and takes the node lock, if requested, in one write.
func (p *Plugin) PreBind(ctx context.Context, bc *framework.BindContext) error {
	a, err := p.ask(bc)
	if err != nil {
		return err
	}
	gone := map[types.UID]bool{}
	change := func(rec *record) error {
		now := p.h.Clock.Now()
		if rec.prepared(bc.Pod.UID, bc.Attempt, a, now.Add(framework.BindSettles)) {
			return nil
		}
		if e := rec.Entries[bc.Pod.UID]; e != nil && e.Bound {
			return framework.Stale(framework.ObjectOf(bc.Pod), "already bound to node %s", bc.Node.Name).Advise("do not retry")
		}
		if err := makeRoom(ctx, p.h.Live, rec, bc, a, gone); err != nil {
			return err
		}
		if e := rec.Entries[bc.Pod.UID]; e != nil && !e.has(bc.Attempt, a.devices) && e.grantsOf(bc.Attempt) >= maxGrants {
			return framework.Refuse(framework.ObjectOf(bc.Pod), "has requested other devices %d times on node %s", maxGrants, bc.Node.Name).
				Advise("schedule the pod again")
		}
		if a.lock {
			if p.locked(rec, bc.Pod.UID, now) > 0 {
				return framework.NotYet(framework.ObjectOf(bc.Node), "%s", lockOf(rec.Lock))
			}
			rec.take(bc.Pod, bc.Attempt, now.Add(p.args.NodeLockTimeout.Duration))
		}
		rec.grant(bc.Pod, bc.Attempt, a.devices)
		return nil
	}
	if err = p.records.Update(ctx, bc.Node.Name, change); !isFull(err) {
		return err
	}
	// Ended pods can fill the record before Tidy visits the node.
	if err = p.tidy(ctx, bc.Node.Name); err == nil || isFull(err) {
		err = p.records.Update(ctx, bc.Node.Name, change)
	}
	if isFull(err) {
		return framework.Refuse(framework.AsError(Name, err).Object, "the record of the devices of node %s is full", bc.Node.Name).
			Advise("choose another node").Because(err)
	}
	return err
}

// isFull returns whether the API server rejected a record because of its size. Above 3 MiB, it does not read the object.
func isFull(err error) bool {
	return apierrors.HasStatusCause(err, metav1.CauseType(field.ErrorTypeTooLong)) || apierrors.IsRequestEntityTooLargeError(err)
}

// locked returns how long another pod can keep the node lock at most, or 0 if it does not have it. A pod loses the lock when its
// bind ends.
func (p *Plugin) locked(rec *record, uid types.UID, now time.Time) time.Duration {
	if rec.Lock == nil || rec.Lock.UID == uid {
		return 0
	}
	seen := seenLock{node: rec.Node, uid: rec.Lock.UID, expires: rec.Lock.Expires.Unix()}
	return max(0, p.args.NodeLockTimeout.Duration-now.Sub(p.since(seen, now)))
}

// seenLock is a lock. A renewal changes its expiry, in Unix seconds.
type seenLock struct {
	node    string
	uid     types.UID
	expires int64
}

// since returns when the lock was seen first. It forgets a lock twice the timeout later.
func (p *Plugin) since(seen seenLock, now time.Time) time.Time {
	if since, ok := p.seenLocks.Get(seen); ok {
		if since, ok := since.(time.Time); ok {
			return since
		}
	}
	p.seenLocks.Set(seen, now, 2*p.args.NodeLockTimeout.Duration)
	return now
}

// PreBindRollBack removes the grant and the lock of this attempt.
func (p *Plugin) PreBindRollBack(ctx context.Context, m framework.Mark) error {
	return p.records.Update(ctx, m.Node, func(rec *record) error {
		rec.release(m.PodUID, m.Attempt)
		rec.unlock(m.PodUID, m.Attempt)
		return nil
	})
}

// ask returns the requests of the bind.
func (p *Plugin) ask(bc *framework.BindContext) (ask, error) {
	a, err := parse(framework.Parameters(Name, bc.Binding, bc.Pod))
	if err != nil {
		return ask{}, err
	}
	a.lock = a.lock || p.args.NodeLocks && len(a.devices) > 0
	return a, nil
}

func lockOf(l *lock) string { return fmt.Sprintf("the lock that pod %s holds on the node", l.Pod) }
