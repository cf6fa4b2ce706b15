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

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
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
	_ framework.BindContextExtender = (*Plugin)(nil)
)

// New returns the plugin. It starts nothing.
func New(h framework.Handle, args *Arguments) *Plugin { return &Plugin{h: h, args: args} }

// Name implements framework.Plugin.
func (*Plugin) Name() string { return Name }

// claims contains ResourceClaims of the namespace of the pod, by name.
type claims map[string]*resourcev1.ResourceClaim

// SetupBindContextExtension reads the claims of the pod, and decides on them. It rejects the same binds as Filter of kube-scheduler's
// DynamicResources, except for devices that need DRAOptionalNodeOperations (alpha).
func (p *Plugin) SetupBindContextExtension(ctx context.Context, cache framework.Reader, bc *framework.BindContext) error {
	refs, invalid := references(bc.Pod)
	if len(refs) == 0 { // Most pods have no claims.
		framework.Extend(bc, readiness{})
		return invalid
	}
	all := make(claims, len(refs))
	for _, ref := range refs {
		if ref.claim == "" {
			continue
		}
		claim, err := framework.Get(ctx, cache, &resourcev1.ResourceClaim{}, bc.Pod.Namespace, ref.claim)
		if err != nil {
			return err
		}
		all[ref.claim] = claim
	}
	r, rejected := p.decide(bc, refs, all)
	framework.Extend(bc, r)
	return rejected
}

// PreFlight returns the reservations to make, and the wait.
func (p *Plugin) PreFlight(bc *framework.BindContext) (framework.Verdict, error) {
	r, err := framework.Extension[readiness](bc)
	v := framework.Verdict{Wait: r.wait}
	for _, ref := range r.toTake {
		v.Writes = append(v.Writes, fmt.Sprintf("reserve %s for the pod", claimObject(bc.Pod.Namespace, ref.claim)))
	}
	return v, err
}

// PreBind reserves the claims for the pod.
func (p *Plugin) PreBind(ctx context.Context, bc *framework.BindContext) error {
	r, err := framework.Extension[readiness](bc)
	if err != nil {
		return err
	}
	for _, ref := range r.toTake {
		if err := p.take(ctx, bc, ref); err != nil {
			return err
		}
	}
	return nil
}

// PreBindRollBack removes the reservations that this attempt made.
func (p *Plugin) PreBindRollBack(ctx context.Context, m framework.Mark) error {
	names, err := p.marked(ctx, m)
	errs := []error{err}
	// The cache can lack the marks of the last PreBind. If the pod is gone too, or replaced by one with its name, the next sweep finds them.
	pod, err := framework.Get(ctx, p.h.Live, &corev1.Pod{}, m.Pod.Namespace, m.Pod.Name)
	errs = append(errs, err)
	if pod != nil && pod.UID == m.PodUID {
		refs, _ := references(pod) // Without references, there were no writes.
		for _, ref := range refs {
			names = append(names, ref.claim)
		}
	}
	for name := range sets.New(names...).Delete("") {
		errs = append(errs, p.release(ctx, m, name))
	}
	return errors.Join(errs...)
}

// PostBind removes the marks of this attempt, because the reservations now belong to the
// pod. The cache has shown the marks before the bind was allowed.
func (p *Plugin) PostBind(ctx context.Context, m framework.Mark, _ *corev1.Pod) error {
	names, err := p.marked(ctx, m)
	errs := []error{err}
	for _, name := range names {
		errs = append(errs, client.IgnoreNotFound(p.unmark(ctx, m, name, nil)))
	}
	return errors.Join(errs...)
}

// Marks lists the attempts whose reservations are not confirmed. If the claim is reserved
// for the pod of a mark, the name of the pod is from the reservation, because tenants can
// write marks. The number of marks per claim is limited.
func (p *Plugin) Marks(ctx context.Context) ([]framework.Mark, error) {
	var list resourcev1.ResourceClaimList
	if err := p.h.Cached.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	var marks []framework.Mark
	for i := range list.Items {
		marks = append(marks, unsettled(&list.Items[i])...)
	}
	return marks, nil
}
