// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package device is the PreBind plugin that gives devices of a node to one pod at
// a time, across all schedulers. Whoever chooses the devices names them by
// annotations of the Binding or the pod; the plugin grants them, or refuses and
// names the holder.
//
// What is granted stands in one record per node, a ConfigMap in Prebind's
// namespace, that is only ever written on the condition that nobody has written it
// since it was read. So two replicas, and any number of schedulers, cannot give a
// device twice. Decisions are pure functions of the record (record.go, ask.go);
// store.go reads and writes it.
//
// A grant is the attempt's until the pod is seen bound, then the pod's own, for as
// long as the pod is there and not finished: whether it is, is looked up, never
// guessed.
package device

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// Name of the plugin.
const Name = "device"

// maxAttempt is longer than any attempt of the engine's; what is longer is no
// attempt, and does not come into a record.
const maxAttempt = 128

// Options of the plugin. All fields but NodeLocks are required.
type Options struct {
	// Cached holds the records of the namespace, with the index of SetupIndexes; see Caches.
	Cached client.Reader
	// Live reads records and pods from the API server, before anything is refused
	// by what the cache says.
	Live client.Reader
	// Writer creates, updates and deletes the records.
	Writer client.Writer
	// Changes tells of changes of the records.
	Changes *framework.Hub
	Clock   clock.WithDelayedExecution
	// Domain of the annotations.
	Domain string
	// Namespace of the records.
	Namespace string
	// NodeLocks makes every pod that names devices take the lock of its node, as if
	// it had the annotation device.<domain>/node-lock.
	NodeLocks bool
	// NodeLockTimeout is when a lock of a node may be taken from its holder, whatever
	// that is at. It should be longer than any bind takes.
	NodeLockTimeout time.Duration
}

// Plugin grants devices; see New. It is safe for concurrent use.
type Plugin struct {
	o       Options
	records *store
	sights  sights
	// tidied is the name of the record that Tidy looked at last.
	tidied string
}

var (
	_ framework.PreBinder           = (*Plugin)(nil)
	_ framework.PreFlighter         = (*Plugin)(nil)
	_ framework.BindContextExtender = (*Plugin)(nil)
	_ framework.RollBacker          = (*Plugin)(nil)
	_ framework.OnAnnotation        = (*Plugin)(nil)
	_ framework.Confirmer           = (*Plugin)(nil)
	_ framework.PostBinder          = (*Plugin)(nil)
	_ framework.Recoverer           = (*Plugin)(nil)
	_ framework.Tidier              = (*Plugin)(nil)
)

// New checks the options and returns the plugin. It starts nothing.
func New(o Options) (*Plugin, error) {
	switch {
	case o.Cached == nil || o.Live == nil || o.Writer == nil || o.Changes == nil || o.Clock == nil:
		return nil, errors.New(Name + ": Cached, Live, Writer, Changes and Clock are required")
	case o.Domain == "" || o.Namespace == "":
		return nil, errors.New(Name + ": Domain and Namespace are required")
	case o.NodeLockTimeout <= 0:
		return nil, fmt.Errorf("%s: NodeLockTimeout is %s, it must be positive", Name, o.NodeLockTimeout)
	}
	p := &Plugin{o: o, sights: sights{of: map[string]sight{}}}
	p.records = newStore(o.Cached, o.Live, o.Writer, o.Namespace, p.grantOf)
	return p, nil
}

// Name implements framework.PreBinder.
func (*Plugin) Name() string { return Name }

// Asked implements framework.OnAnnotation: a scheduler's plugin names the devices on the
// Binding, a user on the pod.
func (*Plugin) Asked() framework.Source { return framework.ByBindingOrPod }

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

// preFlight checks what is asked for, and refuses what another pod holds.
func (p *Plugin) preFlight(ctx context.Context, bc *framework.BindContext) (framework.Next, error) {
	ask, err := p.ask(bc)
	if err != nil {
		return framework.Run, err
	}
	if ask.nothing() {
		return framework.Skip, nil
	}
	bc.Has(ask.list()...)
	p.pin(bc)
	rec, err := p.records.known(ctx, bc.Node.Name)
	if err != nil {
		return framework.Run, err
	}
	if rec.prepared(bc.Pod.UID, bc.Attempt, ask, p.lasting()) || len(rec.conflicts(bc.Pod.UID, ask.devices)) > 0 {
		// The cache alone neither lets a bind go ahead nor refuses it.
		if rec, err = p.records.read(ctx, bc.Node.Name); err != nil {
			return framework.Run, err
		}
		if rec.prepared(bc.Pod.UID, bc.Attempt, ask, p.lasting()) {
			return framework.Skip, nil
		}
		if err := p.clear(ctx, rec, bc, ask); err != nil {
			return framework.Run, err
		}
	}
	if len(ask.devices) > 0 {
		bc.Intend("%s would grant %s of Node %s to the pod", Name, ask.devices, bc.Node.Name)
	}
	if ask.lock {
		bc.Intend("%s would lock Node %s for the bind, and wait where another bind has locked it", Name, bc.Node.Name)
		if p.locked(rec, bc) > 0 {
			bc.WouldWait(framework.Waiting{Object: nodeObject(bc), For: fmt.Sprintf("the lock that pod %s holds on the node", rec.Lock.Pod)})
		}
	}
	return framework.Run, nil
}

// pin puts on the Binding what the pod itself asks for: so the pod carries, with its
// node, what was granted, whatever its own annotations are edited to meanwhile.
func (p *Plugin) pin(bc *framework.BindContext) {
	for key, parameter := range framework.Parameters(p.o.Domain, Name, p.Asked(), bc.Binding, bc.Pod) {
		if parameter.On.Kind == "Pod" {
			bc.Annotate(Name, key, parameter.Value)
		}
	}
}

// PreBind grants the devices and takes the lock of the node, where it is asked
// for, in one write.
func (p *Plugin) PreBind(ctx context.Context, bc *framework.BindContext) error {
	ask, err := p.ask(bc)
	if err != nil {
		return err
	}
	changes := p.o.Changes.Subscribe(framework.RefTo(&corev1.ConfigMap{}, p.o.Namespace, recordName(bc.Node.Name)))
	defer changes.Close()
	// looked is the holder of the lock whose pod was looked at already: once is
	// enough, for its own attempts, or the sweep, tell by the record when it ends.
	var looked types.UID
	for {
		held, left, err := p.grant(ctx, bc, ask, looked)
		if err != nil || held == nil {
			return err
		}
		looked = held.UID
		bc.Waiting(framework.Waiting{Object: nodeObject(bc), For: fmt.Sprintf("the lock that pod %s holds on the node", held.Pod)})
		timer := p.o.Clock.NewTimer(left)
		select {
		case <-changes.C():
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		timer.Stop()
	}
}

// grant writes the grant, or returns the lock that keeps it from doing so, and for how
// long at most.
func (p *Plugin) grant(ctx context.Context, bc *framework.BindContext, ask ask, looked types.UID) (held *lock, left time.Duration, err error) {
	err = p.records.update(ctx, bc.Node.Name, func(rec *record, live bool) (bool, error) {
		held = nil
		if rec.prepared(bc.Pod.UID, bc.Attempt, ask, p.lasting()) {
			return false, nil
		}
		if !live && !p.free(rec, bc, ask, looked) {
			return false, errLookAgain
		}
		if rec.isBound(bc.Pod.UID) {
			return false, framework.Stale(podObject(bc), "it is bound to the node %s already", bc.Node.Name).Advise("forget this bind")
		}
		if err := p.clear(ctx, rec, bc, ask); err != nil {
			return false, err
		}
		if ask.lock {
			if held, err = p.unlock(ctx, rec, bc, looked); held != nil || err != nil {
				left = p.locked(rec, bc)
				return false, err
			}
			rec.take(bc.Pod, bc.Attempt, p.o.Clock.Now().Add(p.o.NodeLockTimeout))
		}
		rec.grant(bc.Pod, bc.Attempt, ask.devices)
		return true, nil
	})
	return held, left, err
}

// locked is for how long another pod than the bind's has the lock of the node at most;
// 0 if none has.
func (p *Plugin) locked(rec *record, bc *framework.BindContext) time.Duration {
	now := p.o.Clock.Now()
	since := p.sights.since(rec, now, 2*p.o.NodeLockTimeout)
	if rec.Lock == nil || rec.Lock.UID == bc.Pod.UID {
		return 0
	}
	return max(p.o.NodeLockTimeout-now.Sub(since), 0)
}

// free says whether the record lets the grant be written, or waited for, without a
// look at it as the API server has it.
func (p *Plugin) free(rec *record, bc *framework.BindContext, ask ask, looked types.UID) bool {
	busy := ask.lock && p.locked(rec, bc) > 0
	return (!busy || rec.Lock.UID == looked) && !rec.isBound(bc.Pod.UID) && len(rec.conflicts(bc.Pod.UID, ask.devices)) == 0
}

// unlock takes the lock from a pod whose bind is over, for it is for the bind only.
// It returns the lock of one that may still be bound, or that was looked at before.
func (p *Plugin) unlock(ctx context.Context, rec *record, bc *framework.BindContext, looked types.UID) (*lock, error) {
	if p.locked(rec, bc) == 0 {
		return nil, nil
	}
	if rec.Lock.UID == looked {
		return rec.Lock, nil
	}
	at, err := p.look(ctx, bc.Node.Name, rec.Lock.Pod, rec.Lock.UID)
	if err != nil {
		return nil, err
	}
	if at == pending {
		return rec.Lock, nil
	}
	rec.Lock = nil
	return nil, nil
}

// lasting is until when a lock has to be good for a bind that is let go ahead now.
func (p *Plugin) lasting() time.Time {
	return p.o.Clock.Now().Add(min(framework.BindSettles, p.o.NodeLockTimeout/2))
}

// Confirm sees that nobody has taken the grant, or the lock, out of Prebind's hands
// while the bind was prepared. It asks the API server: the cache may be behind, and
// after this nobody looks again.
func (p *Plugin) Confirm(ctx context.Context, _ framework.Reader, bc *framework.BindContext) error {
	ask, err := p.ask(bc)
	if err != nil || ask.nothing() {
		return err
	}
	rec, err := p.records.read(ctx, bc.Node.Name)
	if err != nil {
		return err
	}
	switch {
	case rec.prepared(bc.Pod.UID, bc.Attempt, ask, p.lasting()):
		return nil
	case rec.granted(bc.Pod.UID, bc.Attempt, ask):
		return framework.Wait(nodeObject(bc), "the lock of the node, which was taken for this bind, has expired").
			Advise("repeat the Binding; where other plugins take long, raise the timeout of the lock")
	default:
		return framework.Wait(p.records.object(bc.Node.Name), "what was granted for this bind is not in it any more").
			Advise("repeat the Binding")
	}
}

// PreBindRollBack takes back what this attempt was granted, and its lock.
func (p *Plugin) PreBindRollBack(ctx context.Context, bc *framework.BindContext) error {
	var released, unlocked bool
	err := p.records.update(ctx, bc.Node.Name, func(rec *record, live bool) (bool, error) {
		released, unlocked = rec.release(bc.Pod.UID, bc.Attempt), rec.unlock(bc.Pod.UID, bc.Attempt)
		if !released && !unlocked && !live {
			// The cache may be behind the write of another replica, or of one whose
			// answer was lost.
			return false, errLookAgain
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
		bc.Undid("released the lock of the node")
	}
	return nil
}

// clear drops the holders of what is asked for that are gone, and refuses what is
// still held then.
func (p *Plugin) clear(ctx context.Context, rec *record, bc *framework.BindContext, ask ask) error {
	for _, h := range rec.holders(rec.conflicts(bc.Pod.UID, ask.devices)) {
		at, err := p.look(ctx, bc.Node.Name, h.pod, h.uid)
		if err != nil {
			return err
		}
		if at == gone {
			rec.drop(h.uid)
		}
	}
	left := rec.conflicts(bc.Pod.UID, ask.devices)
	if len(left) == 0 {
		return nil
	}
	return framework.Refuse(nodeObject(bc), "%s", describe(left)).Advise("choose other devices, or another node")
}

// look finds out where the pod of an entry is.
func (p *Plugin) look(ctx context.Context, node string, name podName, uid types.UID) (whereabouts, error) {
	pod, err := p.pod(ctx, types.NamespacedName(name))
	if err != nil {
		return "", err
	}
	return where(pod, uid, node), nil
}

// pod returns the live pod, or nil when there is none.
func (p *Plugin) pod(ctx context.Context, name types.NamespacedName) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := p.o.Live.Get(ctx, name, pod)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, framework.FromAPI(framework.Object{Kind: "Pod", Namespace: name.Namespace, Name: name.Name}, "looking whether it still holds its devices", err)
	}
	return pod, nil
}

// grantOf is what a pod says itself that it was granted.
func (p *Plugin) grantOf(pod *corev1.Pod) (grant, bool) {
	a, err := parse(framework.Parameters(p.o.Domain, Name, p.Asked(), &corev1.Binding{}, pod))
	attempt := pod.Annotations[framework.AttemptAnnotation(p.o.Domain)]
	if len(attempt) > maxAttempt {
		attempt = ""
	}
	return grant{Attempt: attempt, Devices: a.devices}, err == nil && len(a.devices) > 0
}

// ask reads what the bind asks for.
func (p *Plugin) ask(bc *framework.BindContext) (ask, error) {
	a, err := parse(framework.Parameters(p.o.Domain, Name, p.Asked(), bc.Binding, bc.Pod))
	if err != nil {
		return ask{}, err
	}
	a.lock = a.lock || p.o.NodeLocks && len(a.devices) > 0
	return a, nil
}

func podObject(bc *framework.BindContext) framework.Object {
	return framework.Object{Kind: "Pod", Namespace: bc.Pod.Namespace, Name: bc.Pod.Name}
}

func nodeObject(bc *framework.BindContext) framework.Object {
	return framework.Object{Kind: "Node", Name: bc.Node.Name}
}
