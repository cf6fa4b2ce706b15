// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package resourceclaims is the PreBind plugin for pods with ResourceClaims. Before the pod
// is bound, the plugin ensures that the scheduler has allocated its claims for the node, that
// they are reserved for the pod, and that their binding conditions are true. It does the
// PreBind work of kube-scheduler's DynamicResources for every scheduler that allocates
// claims. If the scheduler has already done that work, the plugin does nothing.
//
// Decisions are pure functions of pod, node and claims (references.go, decide.go, marks.go).
// plugin.go, prebind.go and release.go read and write.
//
// Before an attempt reserves a claim, it writes a mark with its name into the annotations of
// the claim. That is a separate write, because the API does not accept annotations together
// with a status. The mark fences the writes of the attempt: each write of the status
// requires the mark or a version of the claim, so that no write takes effect late. An
// attempt that relies on a reservation marks the claim.
//
// Tenants can write marks and managedFields, so neither decides that something is undone
// (release.go). The reservation in the status and the pod that it names decide: a bound pod
// keeps its claims. Allocations stay, like in kube-scheduler.
package resourceclaims

import (
	"context"
	"errors"
	"fmt"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// Name of the plugin.
const Name = "resource-claims"

// Plugin reserves claims. It is safe for concurrent use.
type Plugin struct {
	h    framework.Handle
	args *Arguments
}

var (
	_ framework.PreBinder           = (*Plugin)(nil)
	_ framework.PreFlighter         = (*Plugin)(nil)
	_ framework.BindContextExtender = (*Plugin)(nil)
	_ framework.RollBacker          = (*Plugin)(nil)
	_ framework.Confirmer           = (*Plugin)(nil)
	_ framework.PostBinder          = (*Plugin)(nil)
	_ framework.Recoverer           = (*Plugin)(nil)
)

// New returns the plugin, or an error if the arguments are invalid. It starts nothing.
func New(h framework.Handle, args *Arguments) (*Plugin, error) {
	for _, p := range args.Validate() {
		return nil, fmt.Errorf("%s: %w", p.Field, p.Err)
	}
	return &Plugin{h: h, args: args}, nil
}

// Name implements framework.PreBinder.
func (*Plugin) Name() string { return Name }

// claims contains ResourceClaims of the namespace of the pod, by name.
type claims map[string]*resourcev1.ResourceClaim

var (
	// observed contains the claims that SetupBindContextExtension has read.
	observed = framework.NewExtensionKey[claims](Name + "/observed")
	// written contains the claims that this attempt writes, as last returned by the API
	// server. The value is nil until the first response.
	written = framework.NewExtensionKey[claims](Name + "/written")
)

// SetupBindContextExtension reads the claims of the pod.
func (p *Plugin) SetupBindContextExtension(ctx context.Context, reader framework.Reader, bc *framework.BindContext) error {
	if !hasClaims(bc.Pod) {
		return nil
	}
	refs, _ := references(bc.Pod) // PreFlight reports the error.
	all, err := readClaims(ctx, reader, bc, refs)
	if err == nil {
		observed.Set(bc, all)
	}
	return err
}

// readClaims returns the existing claims of the references. It prefers later versions that
// this attempt has written.
func readClaims(ctx context.Context, reader framework.Reader, bc *framework.BindContext, refs []reference) (claims, error) {
	all, own := make(claims, len(refs)), writtenBy(bc)
	for _, ref := range refs {
		if ref.claim == "" {
			continue
		}
		claim, err := framework.Get(ctx, reader, &resourcev1.ResourceClaim{}, bc.Pod.Namespace, ref.claim)
		if err != nil {
			return nil, err
		}
		if mine := own[ref.claim]; claim != nil && mine != nil && newer(mine, claim) {
			claim = mine
		}
		all[ref.claim] = claim
	}
	return all, nil
}

// newer reports whether a is a later version than b. Versions are comparable within a kind,
// so that a claim that was deleted and created again is newer.
func newer(a, b *resourcev1.ResourceClaim) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && order > 0
}

// PreFlight skips a bind whose claims are ready. It rejects the same binds as Filter of
// kube-scheduler's DynamicResources.
func (p *Plugin) PreFlight(bc *framework.BindContext) (framework.Next, error) {
	if !hasClaims(bc.Pod) {
		return framework.Skip, nil
	}
	all, err := observed.Get(bc)
	if err != nil {
		return framework.Run, err
	}
	r, err := p.basis(bc).readiness(all)
	switch {
	case err != nil:
		return framework.Run, err
	case r.done():
		return framework.Skip, nil
	}
	for _, intent := range r.intents() {
		bc.Intend("%s would %s", Name, intent)
	}
	for _, w := range r.waits() {
		bc.ExpectWait(w)
	}
	// The cache can be behind a write of the scheduler just before the bind.
	return framework.Verify, nil
}

func (p *Plugin) basis(bc *framework.BindContext) basis {
	return basis{pod: bc.Pod, node: bc.Node, attempt: bc.Attempt, timeout: p.args.BindingTimeout, since: bc.Since, now: bc.Now}
}

// Confirm checks that the claims are still allocated, reserved and ready.
func (p *Plugin) Confirm(ctx context.Context, reader framework.Reader, bc *framework.BindContext) error {
	if !hasClaims(bc.Pod) {
		return nil
	}
	r, err := p.look(ctx, reader, bc, p.h.Clock.Now())
	if err != nil || r.done() {
		return err
	}
	about := podObject(bc.Pod)
	if left := r.in(unreserved, borrowed, unready); len(r.unmade) == 0 {
		about = claimObject(left[0].claim.Namespace, left[0].claim.Name)
	}
	return framework.Wait(about, "changed during the bind").Advise("retry the Binding")
}

// PreBindRollBack removes the reservations that this attempt made.
func (p *Plugin) PreBindRollBack(ctx context.Context, bc *framework.BindContext) error {
	names, err := p.touched(ctx, bc)
	errs := []error{err}
	for _, name := range names {
		removed, err := p.release(ctx, bc, name)
		if err != nil {
			errs = append(errs, err)
		}
		if removed {
			bc.Undid("removed its reservation of %s", claimObject(bc.Pod.Namespace, name))
		}
	}
	return errors.Join(errs...)
}

// PostBind removes the marks of this attempt, because the reservations now belong to the
// pod. If that fails, the sweep removes the marks.
func (p *Plugin) PostBind(ctx context.Context, bc *framework.BindContext) {
	names, err := p.touched(ctx, bc)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to list the marked claims, the sweep retries it")
	}
	for _, name := range names {
		if err := p.unmark(ctx, bc, name); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to remove the mark of a reservation, the sweep retries it", "claim", klog.KRef(bc.Pod.Namespace, name))
		}
	}
}

// Marks lists the attempts whose reservations are not confirmed. If the claim is reserved
// for the pod of a mark, the name of the pod is from the reservation, because tenants can
// write marks. The number of marks per claim is limited.
func (p *Plugin) Marks(ctx context.Context) ([]framework.Mark, error) {
	var list resourcev1.ResourceClaimList
	if err := p.h.Cached.List(ctx, &list, client.MatchingFields{markedIndex: "true"}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	var marks []framework.Mark
	seen := sets.New[framework.Mark]()
	for i := range list.Items {
		for _, m := range unsettled(&list.Items[i]) {
			if !seen.Has(m) { // A pod can have several claims.
				seen.Insert(m)
				marks = append(marks, m)
			}
		}
	}
	return marks, nil
}
