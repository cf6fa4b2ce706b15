// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bindpolicy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
)

const (
	// watchTimeout is how long the watches of a policy may take to deliver all objects.
	watchTimeout = 30 * time.Second
	// retryInterval is the time after which a policy is prepared again whose problem can end without a new
	// generation.
	retryInterval = 5 * time.Second
	// maxRetryInterval is the limit of retryInterval, which doubles with each try.
	maxRetryInterval = time.Minute
	// recheckInterval is the time after which the watches of a policy in force are checked.
	recheckInterval = time.Minute
	// maxCompiles is the number of policies that are compiled at the same time, so that binds keep most of the CPU.
	maxCompiles = 2
	// aggregateLabel is the label of ClusterRoles that grant permissions for policies.
	aggregateLabel = "rbac.prebind.dev/aggregate-to-policy"
)

// compile is policy.Compile without panics.
func compile(b *v1alpha1.BindPolicy, o policy.Options) (c *policy.Compiled, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the compiler panicked: %v; report the bug with the policy", r)
		}
	}()
	return policy.Compile(b, o)
}

// prepare compiles a generation, unless an earlier try has done so, and waits for its watches. before is the result of
// the earlier try. report is called
// with the progress, the last time with done set, and again if there are warnings.
func (p *Plugin) prepare(ctx context.Context, b *v1alpha1.BindPolicy, before prepared, report func(prepared)) {
	e := before.entry
	result := prepared{uid: b.UID, generation: b.Generation, entry: e}
	if e == nil {
		c, err := p.compileInTurn(ctx, b, policy.Options{KeyPrefixes: p.args.KeyPrefixes})
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			result.done, result.problem = true, problemOf(err)
			report(result)
			return
		}
		result.entry = &entry{
			name: b.Name, uid: b.UID, generation: b.Generation, compiled: c, reads: p.sharing.readsOf(c.Needs(), p.h.Live), counters: p.metrics.countersOf(b.Name, c.Audit()),
		}
		report(result)
	}
	needs := result.entry.compiled.Needs()
	result.problem = p.selectAll(ctx, result.entry.reads.all(needs))
	if result.problem == nil {
		result.problem = p.checkScopes(needs)
	}
	if ctx.Err() != nil {
		return
	}
	result.done, result.warnings = true, result.entry.compiled.Warnings()
	if before.done && before.problem == nil {
		result.warnings = before.warnings
		report(result)
		return
	}
	report(result)
	if result.problem == nil && p.h.Discovery != nil && usesCustomKinds(needs) {
		// The schemas of custom resources come from the API server, which can take long. The policy is in force in the meantime.
		c, err := p.compileInTurn(ctx, b, policy.Options{
			KeyPrefixes: p.args.KeyPrefixes, Schemas: &resolver.ClientDiscoveryResolver{Discovery: p.h.Discovery},
		})
		if err == nil && ctx.Err() == nil {
			result.warnings = c.Warnings()
			report(result)
		}
	}
}

// compileInTurn waits until fewer than maxCompiles policies are being compiled.
func (p *Plugin) compileInTurn(ctx context.Context, b *v1alpha1.BindPolicy, o policy.Options) (*policy.Compiled, error) {
	select {
	case p.compiling <- struct{}{}:
		defer func() { <-p.compiling }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return p.compile(b, o)
}

// usesCustomKinds returns whether the policy reads custom resources.
func usesCustomKinds(n policy.Needs) bool {
	return slices.ContainsFunc(n.Resources, func(r *policy.Resource) bool { return !isBuiltIn(r.Kind) })
}

// selectAll begins the watches concurrently. It returns the problem of the first one that has one.
func (p *Plugin) selectAll(ctx context.Context, all []named) *problem {
	if p.h.Selections == nil || len(all) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	errs := make([]error, len(all))
	var done sync.WaitGroup
	for i, s := range all {
		done.Go(func() { errs[i] = p.h.Selections.Select(ctx, s.Selection) })
	}
	done.Wait()
	for i, err := range errs {
		if err != nil {
			return watchProblem(all[i], err)
		}
	}
	return nil
}

// checkScopes returns the problem of a resource with a namespace whose kind is cluster-scoped, or of a resource by name
// without a namespace whose kind is namespaced: such an object is never found. Kinds whose scope is unknown have no
// problem.
func (p *Plugin) checkScopes(n policy.Needs) *problem {
	if p.h.Discovery == nil {
		return nil
	}
	known := map[schema.GroupVersion]*metav1.APIResourceList{}
	for _, r := range n.Resources {
		if !r.InNamespace && !r.ByName {
			continue
		}
		version := r.Kind.GroupVersion()
		if _, ok := known[version]; !ok {
			served, err := p.h.Discovery.ServerResourcesForGroupVersion(version.String())
			if err != nil {
				served = &metav1.APIResourceList{}
			}
			known[version] = served
		}
		for _, served := range known[version].APIResources {
			if served.Kind == r.Kind.Kind && !strings.Contains(served.Name, "/") && served.Namespaced != r.InNamespace {
				return scopeProblem(r, served.Namespaced)
			}
		}
	}
	return nil
}

// scopeProblem returns the problem of a resource of a kind with another scope.
func scopeProblem(r *policy.Resource, namespaced bool) *problem {
	is := "cluster-scoped; remove namespace and namespaceExpression"
	if namespaced {
		is = "namespaced; add namespace or namespaceExpression"
	}
	return &problem{reason: v1alpha1.ReasonCompileError, message: fmt.Sprintf("spec.resources[%s]: the kind %s is %s", r.Name, r.Kind.Kind, is)}
}

// problemOf returns the problem of a policy that does not compile.
func problemOf(err error) *problem {
	result := &problem{reason: v1alpha1.ReasonCompileError, message: strings.ReplaceAll(err.Error(), "\n", "; ")}
	if found, ok := errors.AsType[*policy.Problem](err); ok {
		result.reason = found.Reason
	}
	return result
}

// watchProblem returns the problem of a selection that cannot be watched.
func watchProblem(s named, err error) *problem {
	result := &problem{passing: true}
	switch kind := framework.KindOf(s.Example); {
	case apierrors.IsForbidden(err):
		result.reason = v1alpha1.ReasonForbidden
		result.message = fmt.Sprintf("%s: %v; apply a ClusterRole with the label %s: \"true\"%s", s.field, err, aggregateLabel, ruleFor(err))
	case meta.IsNoMatchError(err):
		result.reason = v1alpha1.ReasonUnknownKind
		result.message = fmt.Sprintf("%s: the API server does not serve the kind: %v; install it, or correct apiVersion and kind", s.field, err)
	default:
		result.reason = v1alpha1.ReasonWatchFailed
		result.message = fmt.Sprintf("%s: the watch of %s objects did not begin: %v; Prebind tries again", s.field, kind, err)
	}
	return result
}

// ruleFor returns the end of a sentence with the rule that grants the resource of an answer Forbidden. It is empty for an
// answer without a resource.
func ruleFor(err error) string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return ""
	}
	details := status.Status().Details
	return fmt.Sprintf(" and the rule {apiGroups: [%q], resources: [%s], verbs: [get, list, watch]}", details.Group, details.Kind)
}
