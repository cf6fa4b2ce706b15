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
	// aggregateLabel is the label of ClusterRoles that grant permissions for policies.
	aggregateLabel = "rbac.prebind.dev/aggregate-to-policy"
)

// entryOf returns the entry of a generation whose objects can be read.
func (p *Plugin) entryOf(b *v1alpha1.BindPolicy, c *policy.Compiled) *entry {
	return &entry{
		name: b.Name, uid: b.UID, generation: b.Generation, compiled: c, reads: readsOf(c.Needs()), counters: p.metrics.countersOf(b.Name, c.Audit()),
	}
}

// prepare compiles a generation, begins its watches, and checks them again and again until the context ends. It reports all changes.
func (p *Plugin) prepare(ctx context.Context, b *v1alpha1.BindPolicy, report func(*entry, verdict)) {
	c, err := p.compiler.compile(ctx, b, false)
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

// warnings returns the problems of the policy with the schemas of custom resources.
func (p *Plugin) warnings(ctx context.Context, b *v1alpha1.BindPolicy, c *policy.Compiled) []v1alpha1.ExpressionWarning {
	if !slices.ContainsFunc(c.Needs().Resources, func(r *policy.Resource) bool { return !policy.IsBuiltIn(r.Kind) }) {
		return c.Warnings()
	}
	checked, err := p.compiler.compile(ctx, b, true)
	if err != nil {
		return c.Warnings()
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
