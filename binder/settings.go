// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"path"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/mutators"
)

// Mode is how Prebind applies its decisions.
type Mode = v1alpha1.Mode

// The modes; see v1alpha1.
const (
	ModeEnforce = v1alpha1.ModeEnforce
	ModeAudit   = v1alpha1.ModeAudit
	ModeOff     = v1alpha1.ModeOff
)

// NamespaceRule overrides settings for the pods of some namespaces.
type NamespaceRule = v1alpha1.NamespaceRule

// Settings are those of the configuration. They are immutable. All fields are required except Plugins, Claimed and Namespaces. The values
// must be valid; see PrebindConfiguration.Validate in config/v1alpha1.
type Settings struct {
	// Mode applies unless Namespaces overrides it.
	Mode Mode
	// Mutators run on every Binding.
	Mutators *mutators.Chain
	// Plugins are the PreBind plugins, in the order in which they run.
	Plugins []framework.Plugin
	// Claimed returns the devices that are allocated to the pod by its ResourceClaims. It is nil
	// if no mutator needs them.
	Claimed func(ctx context.Context, pod *corev1.Pod) ([]framework.Device, error)
	// Hold is the maximum time that a call is held before it is answered with KindWait.
	Hold time.Duration
	// MaxHolds is the maximum number of held calls. Each one takes a seat of the API server.
	// Calls of exempt users do not, and do not count; see Engine.Exempt.
	MaxHolds int
	// PreBindTimeout limits one attempt over all its calls. The annotation
	// binder.prebind.dev/timeout of the Binding, or else of the pod, overrides it.
	PreBindTimeout time.Duration
	// MaxPreBindTimeout is the maximum of the annotation.
	MaxPreBindTimeout time.Duration
	// Namespaces override settings for some namespaces. Only the first rule that matches a
	// namespace applies.
	Namespaces []NamespaceRule
}

// matches returns whether the rule matches the namespace.
func matches(r NamespaceRule, namespace string) bool {
	return slices.ContainsFunc(r.Names, func(pattern string) bool {
		ok, err := path.Match(pattern, namespace)
		return ok && err == nil
	})
}

// policy applies to the pods of one namespace.
type policy struct {
	mode                              Mode
	preBindTimeout, maxPreBindTimeout time.Duration
}

// policyFor returns the policy for the pods of the namespace.
func (s *Settings) policyFor(namespace string) policy {
	p := policy{mode: s.Mode, preBindTimeout: s.PreBindTimeout, maxPreBindTimeout: s.MaxPreBindTimeout}
	i := slices.IndexFunc(s.Namespaces, func(r NamespaceRule) bool { return matches(r, namespace) })
	if i < 0 {
		return p
	}
	return overridden(s.Namespaces[i], p)
}

// overridden returns the policy with the overrides of the rule.
func overridden(r NamespaceRule, p policy) policy {
	if r.Mode != "" {
		p.mode = r.Mode
	}
	if r.MaxPreBindTimeout.Duration > 0 {
		p.maxPreBindTimeout = r.MaxPreBindTimeout.Duration
		p.preBindTimeout = min(p.preBindTimeout, r.MaxPreBindTimeout.Duration)
	}
	if r.PreBindTimeout.Duration > 0 {
		p.preBindTimeout = r.PreBindTimeout.Duration
		p.maxPreBindTimeout = max(p.maxPreBindTimeout, r.PreBindTimeout.Duration)
	}
	return p
}
