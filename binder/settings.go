// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"cmp"
	"context"
	"path"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/configuration"
	"github.com/prebind/prebind/internal/mutation"
)

// Mode is how Prebind applies its decisions.
type Mode = configuration.Mode

// The modes; see v1alpha1.
const (
	ModeEnforce = configuration.ModeEnforce
	ModeAudit   = configuration.ModeAudit
	ModeOff     = configuration.ModeOff
)

// Settings are those of the configuration. They are immutable. All fields are required except Plugins, Claimed and Namespaces. The values
// must be valid; see PrebindConfiguration.Validate in internal/configuration.
type Settings struct {
	// Mode applies unless Namespaces overrides it.
	Mode Mode
	// Mutators run on every Binding.
	Mutators *mutation.Chain
	// Plugins are the PreBind plugins, in the order in which they run.
	Plugins []framework.Plugin
	// Claimed returns the devices that are allocated to the pod by its ResourceClaims. It is nil
	// if no mutator needs them.
	Claimed func(ctx context.Context, pod *corev1.Pod) ([]framework.Device, error)
	// Hold is the maximum time that a call is held before it is answered with KindWait. Less than twice Settle counts as twice Settle.
	Hold time.Duration
	// RejectWaits answers such a call with KindRefuse instead. The work continues as after KindWait.
	RejectWaits bool
	// MaxHolds is the maximum number of held calls. Each one takes a seat of the API server.
	// Calls of exempt users do not, and do not count: 512 of them are held. See Engine.Exempt.
	MaxHolds int
	// PreBindTimeout limits one attempt over all its calls. The annotation
	// binder.prebind.dev/timeout of the Binding, or else of the pod, overrides it.
	PreBindTimeout time.Duration
	// MaxPreBindTimeout is the maximum of the annotation.
	MaxPreBindTimeout time.Duration
	// Namespaces override settings for some namespaces. Only the first rule that matches a
	// namespace applies.
	Namespaces []configuration.NamespaceRule
}

// in returns the settings for the pods of the namespace.
func (s Settings) in(namespace string) Settings {
	matches := func(pattern string) bool {
		ok, err := path.Match(pattern, namespace)
		return ok && err == nil
	}
	for _, r := range s.Namespaces {
		if !slices.ContainsFunc(r.Names, matches) {
			continue
		}
		s.Mode = cmp.Or(r.Mode, s.Mode)
		if limit := r.MaxPreBindTimeout.Duration; limit > 0 {
			s.MaxPreBindTimeout, s.PreBindTimeout = limit, min(s.PreBindTimeout, limit)
		}
		if timeout := r.PreBindTimeout.Duration; timeout > 0 {
			s.PreBindTimeout, s.MaxPreBindTimeout = timeout, max(s.MaxPreBindTimeout, timeout)
		}
		if after := r.RejectAfter.Duration; after > 0 {
			s.Hold, s.RejectWaits = min(s.Hold, after), true
		}
		break
	}
	return s
}
