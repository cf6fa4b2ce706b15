// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/mutators"
)

// Mode is what becomes of Prebind's decisions.
type Mode = v1alpha1.Mode

// The modes; see v1alpha1.
const (
	ModeEnforce = v1alpha1.ModeEnforce
	ModeAudit   = v1alpha1.ModeAudit
	ModeOff     = v1alpha1.ModeOff
)

// NamespaceRule is what is different for the pods of some namespaces.
type NamespaceRule = v1alpha1.NamespaceRule

// Settings are what of an Engine may change while it runs; see Engine.Configure.
// They are never changed once they are in force. All fields are required but
// Plugins, Claimed and Namespaces. The values are those of a valid configuration: see
// PrebindConfiguration.Validate in config/v1alpha1.
type Settings struct {
	// Mode holds for every namespace of which Namespaces says nothing else.
	Mode Mode
	// Mutators run on every Binding.
	Mutators *mutators.Chain
	// Plugins are the PreBind plugins in the order in which they run.
	Plugins []framework.PreBinder
	// Claimed returns the devices that ResourceClaims have allocated to the pod, for
	// the mutators. It is nil where no mutator asks for them.
	Claimed func(ctx context.Context, pod *corev1.Pod) ([]framework.Device, error)
	// Hold is how long a call is kept waiting at most before the client is told
	// to call again.
	Hold time.Duration
	// MaxHolds is how many calls are held at a time; a call over that is told at once to
	// call again. Each one holds a seat of the API server. Calls of exempt users hold none,
	// and do not count; see Engine.Exempt.
	MaxHolds int
	// PreBindTimeout bounds one attempt over all its calls. The annotation
	// binder.prebind.dev/timeout of the Binding, or else of the pod, sets another.
	PreBindTimeout time.Duration
	// MaxPreBindTimeout is the most that the annotation can ask for.
	MaxPreBindTimeout time.Duration
	// Namespaces say what is different for the pods of some namespaces. The first
	// that names a namespace counts, and it alone.
	Namespaces []NamespaceRule
}

// concerns says whether the rule is about the namespace.
func concerns(r NamespaceRule, namespace string) bool {
	return slices.ContainsFunc(r.Names, func(pattern string) bool {
		ok, err := path.Match(pattern, namespace)
		return ok && err == nil
	})
}

// policy is what holds for the pods of one namespace.
type policy struct {
	mode                              Mode
	preBindTimeout, maxPreBindTimeout time.Duration
}

// policyFor returns what holds for the pods of the namespace.
func (s *Settings) policyFor(namespace string) policy {
	p := policy{mode: s.Mode, preBindTimeout: s.PreBindTimeout, maxPreBindTimeout: s.MaxPreBindTimeout}
	i := slices.IndexFunc(s.Namespaces, func(r NamespaceRule) bool { return concerns(r, namespace) })
	if i < 0 {
		return p
	}
	return overruled(s.Namespaces[i], p)
}

// overruled returns the policy with what the rule changes of it.
func overruled(r NamespaceRule, p policy) policy {
	if r.Mode != "" {
		p.mode = r.Mode
	}
	if r.MaxPreBindTimeout > 0 {
		p.maxPreBindTimeout = r.MaxPreBindTimeout
		p.preBindTimeout = min(p.preBindTimeout, r.MaxPreBindTimeout)
	}
	if r.PreBindTimeout > 0 {
		p.preBindTimeout = r.PreBindTimeout
		p.maxPreBindTimeout = max(p.maxPreBindTimeout, r.PreBindTimeout)
	}
	return p
}

// idle says that nothing is switched on, so that Bindings pass unchanged.
func (s *Settings) idle() bool { return s.Mutators.Len() == 0 && len(s.Plugins) == 0 }

// validateNames checks that each plugin and each mutator has a name of its own, under
// which it writes annotations.
func (s *Settings) validateNames() error {
	if s.Mutators == nil {
		return errors.New("engine: Mutators are required")
	}
	seen := map[string]bool{framework.Binder: true}
	for _, name := range s.Mutators.Names() {
		seen[name] = true
	}
	for _, p := range s.Plugins {
		if seen[p.Name()] {
			return fmt.Errorf("engine: plugin %q is registered twice, or a mutator has its name", p.Name())
		}
		seen[p.Name()] = true
		if problems := validation.IsDNS1123Subdomain(p.Name() + "." + framework.Domain); len(problems) > 0 {
			return fmt.Errorf("engine: plugin %q: its name is not valid as part of an annotation key: %s", p.Name(), strings.Join(problems, "; "))
		}
	}
	return nil
}
