// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bindpolicy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
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
	// watchTimeout is how long the watches of a policy may take to deliver all objects before its status says so.
	watchTimeout = 30 * time.Second
	// retryInterval is the time after which failed watches begin again. It doubles with each try, up to maxRetryInterval.
	retryInterval    = 5 * time.Second
	maxRetryInterval = time.Minute
	// recheckInterval is the time after which the watches of a policy in force are checked.
	recheckInterval = time.Minute
	// compileTimeout limits the time that a policy takes to compile.
	compileTimeout = 2 * time.Second
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

// entryOf returns the entry of a generation whose objects can be read.
func (p *Plugin) entryOf(b *v1alpha1.BindPolicy, c *policy.Compiled) *entry {
	return &entry{
		name: b.Name, uid: b.UID, generation: b.Generation, compiled: c, reads: readsOf(c.Needs()), counters: p.metrics.countersOf(b.Name, c.Audit()),
	}
}

// prepare compiles a generation, begins its watches, and checks them again and again until the context ends. It reports all changes.
func (p *Plugin) prepare(ctx context.Context, b *v1alpha1.BindPolicy, report func(*entry, verdict)) {
	c, err := p.compileInTime(ctx, b, policy.Options{KeyPrefixes: p.args.KeyPrefixes})
	if err == nil {
		err = p.checkScopes(c.Needs())
	}
	if err != nil {
		if ctx.Err() == nil {
			reason, message := v1alpha1.ReasonCompileError, strings.ReplaceAll(err.Error(), "\n", "; ")
			if found, ok := errors.AsType[*policy.Problem](err); ok {
				reason = found.Reason
			}
			report(p.entryOf(b, policy.Broken(b, errors.New(message))), notReady(reason, message, b.Spec.FailurePolicy))
		}
		return
	}
	ready := verdict{reason: v1alpha1.ReasonInForce, message: fmt.Sprintf("generation %d is in force", b.Generation)}
	e := p.entryOf(b, c)
	waiting := *e
	waiting.unwatched = map[string]error{}
	for path, s := range e.reads.all() {
		waiting.unwatched[s.Name] = errors.New(path + ": its watch begins")
	}
	report(&waiting, verdict{})
	for pause, checked := time.Duration(0), false; ctx.Err() == nil; {
		unwatched, v := p.selectAll(ctx, b, e.reads)
		if len(unwatched) == 0 {
			pause, v = 0, ready
		} else {
			pause = min(max(2*pause, retryInterval), maxRetryInterval)
		}
		now := *e
		now.unwatched = unwatched
		report(&now, v)
		if pause == 0 && !checked {
			checked = true
			// The schemas of custom resources come from the API server, which can take long.
			if ready.warnings = p.warnings(ctx, b, c); len(ready.warnings) > 0 {
				report(&now, ready)
			}
		}
		timer := p.h.Clock.NewTimer(cmp.Or(pause, recheckInterval))
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// notReady returns the verdict on a policy that cannot be evaluated.
func notReady(reason, message string, follows v1alpha1.FailurePolicy) verdict {
	effect := "the binds that it selects wait or are rejected (failurePolicy Fail)"
	if follows == v1alpha1.FailurePolicyIgnore {
		effect = "binds ignore it (failurePolicy Ignore)"
	}
	return verdict{reason: reason, message: message + "; " + effect}
}

// compileInTime compiles the policy. It waits until fewer than maxCompiles policies are being compiled. CEL cannot be interrupted, so a
// compilation that takes too long goes on without effect.
func (p *Plugin) compileInTime(ctx context.Context, b *v1alpha1.BindPolicy, o policy.Options) (*policy.Compiled, error) {
	select {
	case p.compiling <- struct{}{}:
		defer func() { <-p.compiling }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	var c *policy.Compiled
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err = p.compile(b, o)
	}()
	timer := p.h.Clock.NewTimer(compileTimeout)
	defer timer.Stop()
	select {
	case <-done:
		return c, err
	case <-timer.C():
		return nil, fmt.Errorf("the policy takes longer than %s to compile; make it smaller", compileTimeout)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// warnings returns the problems of the policy with the schemas of custom resources.
func (p *Plugin) warnings(ctx context.Context, b *v1alpha1.BindPolicy, c *policy.Compiled) []v1alpha1.ExpressionWarning {
	custom := slices.ContainsFunc(c.Needs().Resources, func(r *policy.Resource) bool { return !isBuiltIn(r.Kind) })
	if !custom || p.h.Discovery == nil {
		return nil
	}
	checked, err := p.compileInTime(ctx, b, policy.Options{KeyPrefixes: p.args.KeyPrefixes, Schemas: &resolver.ClientDiscoveryResolver{Discovery: p.h.Discovery}})
	if err != nil {
		return nil
	}
	return checked.Warnings()
}

// selectAll begins the watches at the same time. It returns the errors by the name of the selection, and the verdict about the first one.
func (p *Plugin) selectAll(ctx context.Context, b *v1alpha1.BindPolicy, r reads) (unwatched map[string]error, v verdict) {
	all := r.all()
	if p.h.Selections == nil || len(all) == 0 {
		return nil, v
	}
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	paths := slices.Sorted(maps.Keys(all))
	errs := make([]error, len(all))
	var done sync.WaitGroup
	for i, path := range paths {
		done.Go(func() { errs[i] = p.h.Selections.Select(ctx, *all[path]) })
	}
	done.Wait()
	unwatched = map[string]error{}
	for i, path := range paths {
		if errs[i] == nil {
			continue
		}
		reason, err := watchProblem(path, framework.KindOf(all[path].Example), errs[i])
		unwatched[all[path].Name] = err
		if v.reason == "" {
			v = notReady(reason, err.Error(), b.Spec.FailurePolicy)
		}
	}
	return unwatched, v
}

// checkScopes returns an error for a resource with a namespace whose kind is cluster-scoped, or for a resource by name
// without a namespace whose kind is namespaced: such an object is never found. Kinds whose scope is unknown have no
// problem.
func (p *Plugin) checkScopes(n policy.Needs) error {
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
				is := "cluster-scoped; remove namespace and namespaceExpression"
				if served.Namespaced {
					is = "namespaced; add namespace or namespaceExpression"
				}
				return &policy.Problem{Reason: v1alpha1.ReasonCompileError, Field: "spec.resources[" + r.Name + "]", Message: "the kind " + r.Kind.Kind + " is " + is}
			}
		}
	}
	return nil
}

// watchProblem returns the reason and the error of a watch that did not begin.
func watchProblem(path, kind string, err error) (string, error) {
	switch {
	case apierrors.IsForbidden(err):
		return v1alpha1.ReasonForbidden, fmt.Errorf("%s: %w; apply a ClusterRole with the label %s: \"true\"%s", path, err, aggregateLabel, ruleFor(err))
	case meta.IsNoMatchError(err):
		return v1alpha1.ReasonUnknownKind, fmt.Errorf("%s: the API server does not serve the kind: %w; install it, or correct apiVersion and kind", path, err)
	default:
		return v1alpha1.ReasonWatchFailed, fmt.Errorf("%s: the watch of %s objects did not begin: %w; Prebind tries again", path, kind, err)
	}
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
