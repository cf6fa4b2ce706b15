// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
)

const (
	// compileTimeout is the time after which a policy that is being compiled does not keep others from it.
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

// Compile compiles the policy. Its warnings also contain those about the fields of custom resources, unless the API server needs too long for
// their schemas.
func (c *Compiler) Compile(ctx context.Context, b *v1alpha1.BindPolicy) (*policy.Compiled, error) {
	r, _ := c.compile(ctx, b, true)
	if r.err != nil {
		r, _ = c.compile(ctx, b, false)
	}
	return r.compiled, r.err
}

// compilation is the result of a compilation.
type compilation struct {
	compiled *policy.Compiled
	err      error
}

// compile compiles the policy. With schemas, it also checks the fields of custom resources, whose schemas come from the API server. If that
// takes longer than compileTimeout, the result is an error, and late receives the result: the policy is too large, or the replica has no
// processor. CEL cannot be interrupted, so such a compilation goes on. Fewer than maxCompiles other policies are compiled at the same time.
func (c *Compiler) compile(ctx context.Context, b *v1alpha1.BindPolicy, schemas bool) (r compilation, late <-chan compilation) {
	o := c.options
	if schemas && c.discovery != nil {
		o.Schemas = &resolver.ClientDiscoveryResolver{Discovery: c.discovery}
	}
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return compilation{err: context.Cause(ctx)}, nil
	}
	done := make(chan compilation, 1)
	go func() {
		compiled, err := c.build(b, o)
		done <- compilation{compiled, err}
	}()
	timer := c.clock.NewTimer(compileTimeout)
	defer timer.Stop()
	select {
	case r := <-done:
		return r, nil
	case <-timer.C():
		return compilation{err: fmt.Errorf("the policy takes longer than %s to compile; make it smaller", compileTimeout)}, done
	case <-ctx.Done():
		return compilation{err: context.Cause(ctx)}, nil
	}
}
