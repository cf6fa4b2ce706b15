// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package resourceclaims is the PreBind plugin that makes a bind with
// ResourceClaims safe: the claims are allocated for the node, reserved for the pod,
// and their binding conditions are true, before the pod is bound. It does what
// kube-scheduler's DynamicResources does in its PreBind, for every scheduler, and
// finds everything in place when the scheduler has done it already.
//
// Decisions are pure functions of pod, node and claim (references.go, judge.go,
// marks.go); read.go, reserve.go and wait.go do the I/O; allocate.go, choose.go and
// pools.go allocate claims of classes that an operator leaves to Prebind.
//
// A claim is marked in its annotations with the attempt that reserves it, in a write
// just before, because the API takes no annotations with a status. The mark fences the
// attempt's own writes: each write into the status is on the condition of the mark, or
// of the version of the claim, so that nothing is written late. An attempt that relies
// on a reservation marks the claim.
//
// A tenant can write marks and managedFields, so that neither decides that something is
// undone (release.go). The reservation in the status and the pod that it names decide:
// what a bound pod uses stays. An allocation stays as well, as it does in
// kube-scheduler, unless Prebind's record of the pool says that the attempt made it.
package resourceclaims

import (
	"context"
	"errors"
	"fmt"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// Name of the plugin.
const Name = "resource-claims"

// Options of the plugin. All fields but Allocator are required.
type Options struct {
	// Cached holds what the Registration watches, pods without a node, and nodes.
	Cached client.Reader
	// Live reads from the API server, before anything is refused by what the cache
	// says.
	Live client.Reader
	// Writer patches claims, and Status their status.
	Writer client.Writer
	Status client.StatusClient
	// Changes tells of changes of claims and pods.
	Changes *framework.Hub
	Clock   clock.WithDelayedExecution
	// Domain of the marks.
	Domain string
	// BindingTimeout is how long after its allocation the binding conditions of a
	// claim may take to become true: the bindingTimeout of kube-scheduler's
	// DynamicResourcesArgs.
	BindingTimeout time.Duration
	// Allocator allocates claims that no scheduler has allocated; nil for none.
	Allocator Allocator
}

// Allocator allocates claims for schedulers that know nothing of them.
type Allocator interface {
	// Owns returns an error that says why the claim is not Prebind's to allocate, or
	// nil.
	Owns(ctx context.Context, claim *resourcev1.ResourceClaim) error
	// Allocate gives the claim devices for the bind's node, and reserves it for the
	// pod. The claim has the attempt's mark, and no write may come about any more when
	// that is taken off. When somebody else has allocated the claim meanwhile, it
	// returns it so. It refuses when nothing on the node fits.
	Allocate(ctx context.Context, bc *framework.BindContext, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error)
	// Undo takes back what this attempt allocated for the claim, as it stands in the
	// API server, while only the bind's pod has reserved it. It says whether it did.
	// It fails with a conflict when the claim has changed.
	Undo(ctx context.Context, bc *framework.BindContext, claim *resourcev1.ResourceClaim) (bool, error)
	// Tidy gives up devices that no claim has any more.
	Tidy(ctx context.Context) error
}

// Plugin reserves claims; see New. It is safe for concurrent use.
type Plugin struct{ o Options }

var (
	_ framework.PreBinder           = (*Plugin)(nil)
	_ framework.PreFlighter         = (*Plugin)(nil)
	_ framework.BindContextExtender = (*Plugin)(nil)
	_ framework.RollBacker          = (*Plugin)(nil)
	_ framework.Confirmer           = (*Plugin)(nil)
	_ framework.PostBinder          = (*Plugin)(nil)
	_ framework.Recoverer           = (*Plugin)(nil)
	_ framework.Tidier              = (*Plugin)(nil)
)

// New checks the options and returns the plugin. It starts nothing.
func New(o Options) (*Plugin, error) {
	switch {
	case o.Cached == nil || o.Live == nil || o.Writer == nil || o.Status == nil || o.Changes == nil || o.Clock == nil || o.Domain == "":
		return nil, errors.New(Name + ": Cached, Live, Writer, Status, Changes, Clock and Domain are required")
	case o.BindingTimeout <= 0:
		return nil, fmt.Errorf("%s: BindingTimeout is %s, it must be positive", Name, o.BindingTimeout)
	}
	return &Plugin{o: o}, nil
}

// Name implements framework.PreBinder.
func (*Plugin) Name() string { return Name }

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

// preFlight looks at the pod's claims. It refuses what kube-scheduler's
// DynamicResources refuses in its Filter.
func (p *Plugin) preFlight(ctx context.Context, bc *framework.BindContext) (framework.Next, error) {
	if !hasClaims(bc.Pod) {
		return framework.Skip, nil
	}
	s, err := p.surveySurely(ctx, bc, bc.Pod)
	if err != nil {
		return framework.Run, err
	}
	if s.done() {
		return framework.Skip, nil
	}
	for _, intent := range s.intents(bc.Node.Name) {
		bc.Intend("%s would %s", Name, intent)
	}
	for _, w := range s.waits() {
		bc.WouldWait(w)
	}
	return framework.Run, nil
}

// PreBind reserves the claims for the pod and waits for their binding conditions.
func (p *Plugin) PreBind(ctx context.Context, bc *framework.BindContext) error {
	return p.untilReady(ctx, bc)
}

// Confirm sees that the claims are still the pod's.
func (p *Plugin) Confirm(ctx context.Context, _ framework.Reader, bc *framework.BindContext) error {
	if !hasClaims(bc.Pod) {
		return nil
	}
	pod, err := p.pendingPod(ctx, bc)
	if err != nil {
		return err
	}
	s, err := p.surveySurely(ctx, bc, pod)
	if err != nil {
		return err
	}
	if s.done() {
		return nil
	}
	about, _ := s.waitsFor()
	return framework.Wait(about, "it changed while the bind was prepared").Advise("repeat the Binding")
}

// PreBindRollBack takes back the reservations that this attempt made, and nothing
// else. The allocation stays, unless it is this attempt's as well.
func (p *Plugin) PreBindRollBack(ctx context.Context, bc *framework.BindContext) error {
	keys, err := p.touched(ctx, bc)
	errs := []error{err}
	for _, key := range keys {
		undone, err := p.release(ctx, bc, key)
		if err != nil {
			errs = append(errs, err)
		}
		if undone != "" {
			bc.Undid("%s ResourceClaim %s", undone, key)
		}
	}
	return errors.Join(errs...)
}

// PostBind takes this attempt's marks off: the reservations are the pod's now.
// Where that fails the sweep does it, for the marks stay.
func (p *Plugin) PostBind(ctx context.Context, bc *framework.BindContext) {
	keys, err := p.touched(ctx, bc)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not list the marked claims, will try again")
	}
	for _, key := range keys {
		if err := p.unmark(ctx, bc, key); err != nil {
			klog.FromContext(ctx).Error(err, "The mark of a reservation stays, will be tried again", "claim", key.String())
		}
	}
}

// Marks lists the attempts whose reservations are not confirmed, from the cache. The
// pod of a mark is the one in the claim's reservation, where it has one; a mark
// itself is a tenant's data. How many it lists of one claim is bounded.
func (p *Plugin) Marks(ctx context.Context) ([]framework.Mark, error) {
	var claims resourcev1.ResourceClaimList
	if err := p.o.Cached.List(ctx, &claims, client.MatchingFields{markedIndex: "true"}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	var marks []framework.Mark
	for i := range claims.Items {
		marks = append(marks, unsettled(&claims.Items[i], p.o.Domain)...)
	}
	return unique(marks), nil
}

// Tidy gives up the devices that no claim has any more.
func (p *Plugin) Tidy(ctx context.Context) error {
	if p.o.Allocator == nil {
		return nil
	}
	return p.o.Allocator.Tidy(ctx)
}
