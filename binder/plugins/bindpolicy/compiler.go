// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bindpolicy

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
)

const (
	// compileTimeout limits the time that a policy takes to compile.
	compileTimeout = 2 * time.Second
	// maxCompiles is the number of policies that a Compiler compiles at the same time, so that binds keep most of the CPU.
	maxCompiles = 2
)

// Compiler compiles policies for the plugin and for the webhook. It is safe for concurrent use.
type Compiler struct {
	options   policy.Options
	discovery discovery.DiscoveryInterface
	clock     clock.Clock
	// slots limits the policies that are compiled at the same time. build is a variable for tests.
	slots chan struct{}
	build func(*v1alpha1.BindPolicy, policy.Options) (*policy.Compiled, error)
}

// NewCompiler returns a compiler with the options. discovery is for kinds that are not built in. It may be nil.
func NewCompiler(o policy.Options, discovery discovery.DiscoveryInterface, clock clock.Clock) *Compiler {
	return &Compiler{options: o, discovery: discovery, clock: clock, slots: make(chan struct{}, maxCompiles), build: build}
}

// build is policy.Compile without panics.
func build(b *v1alpha1.BindPolicy, o policy.Options) (c *policy.Compiled, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the compiler panicked: %v; report the bug with the policy", r)
		}
	}()
	return policy.Compile(b, o)
}

// Compile compiles the policy with the schemas of custom resources.
func (c *Compiler) Compile(ctx context.Context, b *v1alpha1.BindPolicy) (*policy.Compiled, error) {
	return c.compile(ctx, b, true)
}

// compile compiles the policy. With schemas, it also checks the fields of custom resources, whose schemas come from the API server.
func (c *Compiler) compile(ctx context.Context, b *v1alpha1.BindPolicy, schemas bool) (*policy.Compiled, error) {
	o := c.options
	if c.discovery != nil {
		o.Namespaced = c.scopes(b)
		if schemas {
			o.Schemas = &resolver.ClientDiscoveryResolver{Discovery: c.discovery}
		}
	}
	return c.inTime(ctx, b, o)
}

// inTime waits until fewer than maxCompiles policies are being compiled. CEL cannot be interrupted, so a compilation that takes too long goes on
// without effect.
func (c *Compiler) inTime(ctx context.Context, b *v1alpha1.BindPolicy, o policy.Options) (*policy.Compiled, error) {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	var compiled *policy.Compiled
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		compiled, err = c.build(b, o)
	}()
	timer := c.clock.NewTimer(compileTimeout)
	defer timer.Stop()
	select {
	case <-done:
		return compiled, err
	case <-timer.C():
		return nil, fmt.Errorf("the policy takes longer than %s to compile; make it smaller", compileTimeout)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// scopes returns the scopes of the kinds that are not built in, as far as the API server serves them.
func (c *Compiler) scopes(b *v1alpha1.BindPolicy) map[schema.GroupVersionKind]bool {
	scopes := map[schema.GroupVersionKind]bool{}
	for _, r := range b.Spec.Resources {
		kind := schema.FromAPIVersionAndKind(r.APIVersion, r.Kind)
		if policy.IsBuiltIn(kind) {
			continue
		}
		served, err := c.discovery.ServerResourcesForGroupVersion(r.APIVersion)
		if err != nil {
			continue
		}
		for _, s := range served.APIResources {
			if s.Kind == r.Kind && !strings.Contains(s.Name, "/") {
				scopes[kind] = s.Namespaced
			}
		}
	}
	return scopes
}
