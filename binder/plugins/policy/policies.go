// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

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
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
)

const (
	// listAgain is the time after which the policies are listed again without a change.
	listAgain = 5 * time.Second
	// watchTimeout is how long the watches of a policy may take to deliver all objects before its status says so.
	watchTimeout = 30 * time.Second
	// retryInterval is the time after which failed watches begin again. It doubles with each try, up to recheckInterval, which is the time after
	// which the watches of a policy in force are checked.
	retryInterval   = 5 * time.Second
	recheckInterval = time.Minute
	// aggregateLabel is the label of ClusterRoles that grant permissions for policies.
	aggregateLabel = "rbac.prebind.dev/aggregate-to-policy"
)

// errBegins is the reason why a policy cannot be evaluated before its watches begin.
var errBegins = errors.New("its watch begins")

// generation is the newest generation of a policy. A goroutine compiles it, begins its watches, and writes its status.
type generation struct {
	*v1alpha1.BindPolicy
	cancel context.CancelFunc
	// entry is in force. It can be that of an earlier generation. verdict is on this generation. The lock of the plugin guards both.
	entry   *entry
	verdict verdict
}

// isFor returns whether the generation is that of the policy.
func (g *generation) isFor(b *v1alpha1.BindPolicy) bool {
	return g.UID == b.UID && g.Generation == b.Generation
}

// entry is a generation as binds use it. It is immutable.
type entry struct {
	// compiled cannot be evaluated if the generation does not compile, or is not compiled yet.
	compiled *policy.Compiled
	// reads are the selections from which the policy reads. Policies that read the same objects share a selection.
	reads map[*policy.Resource]*framework.Selection
	// unwatched contains the reasons why resources cannot be read.
	unwatched map[*policy.Resource]error
	verdict   verdict
}

// verdict is what the status of a policy says.
type verdict struct {
	// reason and message are those of the condition Ready. They are empty while the generation is being prepared.
	reason, message string
	warnings        []v1alpha1.ExpressionWarning
}

// signal receives once for one or more changes since the last receive.
type signal chan struct{}

// handler sends the signal for each event.
func (s signal) handler() toolscache.ResourceEventHandler {
	send := func() {
		select {
		case s <- struct{}{}:
		default:
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { send() }, UpdateFunc: func(any, any) { send() }, DeleteFunc: func(any) { send() },
	}
}

// Start implements framework.Starter.
func (p *Plugin) Start(ctx context.Context) error {
	var work sync.WaitGroup
	defer work.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for again := true; again; again = p.pause(ctx, listAgain, p.changed) {
		p.list(ctx, &work)
	}
	return nil
}

// HasSynced implements framework.Starter. The plugin can decide when it knows all policies. One that is not prepared yet follows its failure policy, so
// those with Ignore are prepared first, for at most watchTimeout in total: otherwise, a restart would release the binds that wait.
func (p *Plugin) HasSynced() bool { return p.synced.Load() }

// pause waits for the time or the signal. It returns false if the context has ended.
func (p *Plugin) pause(ctx context.Context, d time.Duration, changed signal) bool {
	timer := p.h.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-changed:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// list begins to prepare new generations, and forgets policies that are gone.
func (p *Plugin) list(ctx context.Context, work *sync.WaitGroup) {
	var list v1alpha1.BindPolicyList
	if err := p.h.Cached.List(ctx, &list, bindPolicies.Where("")); err != nil {
		klog.FromContext(ctx).Error(err, "Could not list the BindPolicies, will retry")
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	gone := maps.Clone(p.latest)
	for i := range list.Items {
		old := p.latest[list.Items[i].Name]
		if old != nil && old.isFor(&list.Items[i]) {
			delete(gone, old.Name)
			continue
		}
		b := new(list.Items[i]) // Not a pointer into the list, which would stay in memory.
		ctx, cancel := context.WithCancel(ctx)
		g := &generation{BindPolicy: b, cancel: cancel, entry: &entry{compiled: policy.Broken(b, policy.ErrPreparing)}}
		if old != nil && old.UID == b.UID && old.entry.verdict.reason == v1alpha1.ReasonInForce {
			g.entry = old.entry // Until put: otherwise, with failurePolicy Ignore, an edit would release the binds that wait.
		}
		p.latest[b.Name] = g
		work.Go(func() { p.prepare(ctx, g) })
	}
	for name, g := range gone {
		g.cancel()
		if p.latest[name] == g {
			delete(p.latest, name)
			p.metrics.forget(name)
		}
	}
	p.apply()
}

// keeps returns whether the entry of an earlier generation stays in force. One in mode Audit does not keep it: that is a way to stop a policy.
func (g *generation) keeps(e *entry) bool {
	return g.entry.verdict.reason == v1alpha1.ReasonInForce && g.entry.compiled != e.compiled &&
		e.verdict.reason != v1alpha1.ReasonInForce && e.compiled.Err() == nil && g.Spec.Mode != v1alpha1.ModeAudit && !g.entry.lost(e)
}

// lost returns whether the API server rejects a watch of the entry, of which a later entry knows.
func (e *entry) lost(later *entry) bool {
	for r, err := range later.unwatched {
		rejected := apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || meta.IsNoMatchError(err)
		for _, s := range e.reads {
			if rejected && s.Name == later.reads[r].Name {
				return true
			}
		}
	}
	return false
}

// put sets the verdict on a generation, and replaces the entry that is in force, unless it keeps it, or a newer generation has replaced it. An entry
// that is in force as before would only wake binds.
func (p *Plugin) put(g *generation, e entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.latest[g.Name] != g {
		return
	}
	if e.verdict.message != g.verdict.message {
		level := klog.Level(0)
		if e.verdict.reason == v1alpha1.ReasonInForce {
			level = 2
		}
		klog.V(level).InfoS("The state of a BindPolicy has changed", "policy", g.Name, "generation", g.Generation, "reason", e.verdict.reason, "message", e.verdict.message)
	}
	g.verdict = e.verdict
	unchanged := e.verdict.reason == v1alpha1.ReasonInForce && g.entry.verdict.reason == v1alpha1.ReasonInForce && e.compiled == g.entry.compiled
	if !unchanged && !g.keeps(&e) {
		g.entry = &e
	}
	p.apply()
}

// apply puts the newest generations in force, ends the watches that they do not need, and wakes the binds that wait. The caller holds the lock.
func (p *Plugin) apply() {
	all, used, ready, prepared := make([]*entry, 0, len(p.latest)), sets.New[string](), 0, true
	for _, name := range slices.Sorted(maps.Keys(p.latest)) {
		g := p.latest[name]
		e := g.entry
		all = append(all, e)
		for _, s := range e.reads {
			used.Insert(s.Name)
		}
		if g.verdict.reason == v1alpha1.ReasonInForce {
			ready++
		}
		prepared = prepared && (g.verdict.reason != "" || g.Spec.FailurePolicy != v1alpha1.FailurePolicyIgnore)
	}
	p.h.Keep(used)
	p.metrics.show(ready, len(all)-ready)
	before := p.set.Swap(&all)
	if before == nil || !slices.Equal(*before, all) {
		p.h.Wake(nil)
	}
	if before == nil {
		p.h.Clock.AfterFunc(watchTimeout, func() { p.synced.Store(true) })
	}
	if prepared {
		p.synced.Store(true)
	}
}

// prepare compiles a generation, begins its watches, and keeps them and its status up to date until the context ends.
func (p *Plugin) prepare(ctx context.Context, g *generation) {
	compiled, err := p.compiler.compile(ctx, g.BindPolicy, nil)
	if ctx.Err() != nil {
		return
	}
	e := p.entryOf(g.BindPolicy, compiled, err)
	p.put(g, e)
	failed, retry := "", time.Duration(0)
	for next := p.h.Clock.Now(); ctx.Err() == nil; p.pause(ctx, checkInterval, nil) {
		if now := p.h.Clock.Now(); !now.Before(next) && e.compiled.Err() == nil {
			before := e.verdict.reason
			p.watch(ctx, g, &e)
			switch retry = min(max(2*retry, retryInterval), recheckInterval); e.verdict.reason {
			case v1alpha1.ReasonInForce:
				retry = 0
			case v1alpha1.ReasonWatchFailed: // The watch goes on, and succeeds when the API server answers.
				retry = retryInterval
			}
			next = now.Add(cmp.Or(retry, recheckInterval))
			p.put(g, e)
			if before != e.verdict.reason && e.verdict.reason == v1alpha1.ReasonInForce { // Binds do not wait for the schemas of the API server.
				e.verdict.warnings = p.compiler.checked(ctx, g.BindPolicy, e.compiled).Warnings()
			}
		}
		failed = p.writeStatus(ctx, g, e.verdict, failed)
	}
}

// entryOf returns the first entry of a generation. Its watches have not begun.
func (p *Plugin) entryOf(b *v1alpha1.BindPolicy, c *policy.Compiled, err error) entry {
	if err != nil {
		message := strings.ReplaceAll(err.Error(), "\n", "; ")
		return entry{compiled: policy.Broken(b, errors.New(message)), verdict: verdict{reason: policy.Problems(err)[0].Reason, message: message + effect(b)}}
	}
	p.metrics.begin(b.Name, b.Spec.Mode == v1alpha1.ModeAudit)
	e := entry{compiled: c, reads: map[*policy.Resource]*framework.Selection{}, unwatched: map[*policy.Resource]error{}}
	for _, r := range c.Reads() {
		e.reads[r], e.unwatched[r] = selectionOf(r), errBegins
	}
	return e
}

// watch begins the watches of an entry at the same time, or checks them. The verdict is about the first one that fails.
func (p *Plugin) watch(ctx context.Context, g *generation, e *entry) {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	all := e.compiled.Reads()
	errs := make([]error, len(all))
	var done sync.WaitGroup
	for i, r := range all {
		switch {
		case p.h.Namespace != "" && r.Namespace == p.h.Namespace:
			errs[i] = errOwn // objects omits them.
		default:
			done.Go(func() { errs[i] = p.h.Select(ctx, *e.reads[r]) })
		}
	}
	done.Wait()
	first := verdict{}
	e.unwatched = map[*policy.Resource]error{}
	for i, r := range all {
		if errs[i] == nil {
			continue
		}
		reason, err := watchProblem(r.Kind.Kind, errs[i])
		e.unwatched[r] = err
		if first.reason == "" {
			first = verdict{reason: reason, message: r.Path + ": " + err.Error()}
		}
	}
	if first.reason == "" {
		e.verdict = verdict{reason: v1alpha1.ReasonInForce, message: fmt.Sprintf("generation %d is in force", g.Generation), warnings: e.verdict.warnings}
		return
	}
	e.verdict = first
	p.mu.Lock()
	defer p.mu.Unlock()
	if g.keeps(e) {
		e.verdict.message += "; the earlier version stays in force"
	} else {
		e.verdict.message += effect(g.BindPolicy)
	}
}

// effect returns the end of the message about a policy that cannot be evaluated.
func effect(b *v1alpha1.BindPolicy) string {
	if b.Spec.FailurePolicy == v1alpha1.FailurePolicyIgnore {
		return "; binds ignore it (failurePolicy Ignore)"
	}
	return "; the binds that it selects wait or are rejected (failurePolicy Fail)"
}

// errOwn is about a resource in Prebind's namespace, whose objects must not decide about binds.
var errOwn = errors.New("policies cannot read objects in Prebind's own namespace; put the objects into another one")

// watchProblem returns the reason and the error of a watch that did not begin.
func watchProblem(kind string, err error) (string, error) {
	switch {
	case errors.Is(err, errOwn):
		return v1alpha1.ReasonForbidden, err
	case apierrors.IsForbidden(err):
		return v1alpha1.ReasonForbidden, fmt.Errorf("%w; apply a ClusterRole with the label %s: \"true\"%s", err, aggregateLabel, ruleFor(err))
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
		return v1alpha1.ReasonUnknownKind, fmt.Errorf("the API server does not serve the kind: %w; install it, or correct apiVersion and kind", err)
	default:
		return v1alpha1.ReasonWatchFailed, fmt.Errorf("the watch of %s objects did not begin: %w; Prebind tries again", kind, err)
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
