// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/discovery"

	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
)

const (
	// schemasTimeout is how long the API server may take for the schemas of custom resources, which are only for warnings.
	schemasTimeout = 2 * time.Second
	// maxCompiles is the number of policies that a Compiler compiles at the same time, so that binds keep most of the CPU and the memory.
	maxCompiles = 2
)

// Compiler compiles policies for the plugin and for the webhook. It is safe for concurrent use.
type Compiler struct {
	options   policy.Options
	discovery discovery.DiscoveryInterface
	// slots limits the policies that are compiled at the same time, and checks those that are compiled with schemas. build is a variable for tests.
	slots, checks chan struct{}
	build         func(*v1alpha1.BindPolicy, policy.Options) (*policy.Compiled, error)
}

// NewCompiler returns a compiler with the options. discovery is for kinds that are not built in. It may be nil.
func NewCompiler(o policy.Options, discovery discovery.DiscoveryInterface) *Compiler {
	return &Compiler{options: o, discovery: discovery, slots: make(chan struct{}, maxCompiles), checks: make(chan struct{}, maxCompiles), build: build}
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
	compiled, err := c.compile(ctx, b, nil)
	if err != nil {
		return nil, err
	}
	return c.checked(ctx, b, compiled), nil
}

// checked adds the warnings about the fields of custom resources to a compiled policy, if the API server answers in time.
func (c *Compiler) checked(ctx context.Context, b *v1alpha1.BindPolicy, compiled *policy.Compiled) *policy.Compiled {
	if c.discovery == nil || !slices.ContainsFunc(compiled.Reads(), func(r *policy.Resource) bool { return !policy.IsBuiltIn(r.Kind) }) {
		return compiled
	}
	if checked, err := c.compile(ctx, b, &resolver.ClientDiscoveryResolver{Discovery: c.discovery}); err == nil {
		return checked
	}
	return compiled
}

// compile compiles the policy. CEL and requests for schemas cannot be interrupted: a compilation whose time has ended goes on, and keeps its slot.
func (c *Compiler) compile(ctx context.Context, b *v1alpha1.BindPolicy, schemas policy.Schemas) (*policy.Compiled, error) {
	o, slots := c.options, c.slots
	if o.Schemas = schemas; schemas != nil {
		slots = c.checks
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, schemasTimeout)
		defer cancel()
	}
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	var compiled *policy.Compiled
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { <-slots }()
		compiled, err = c.build(b, o)
	}()
	select {
	case <-done:
		return compiled, err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
