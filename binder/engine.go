// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package binder decides what becomes of a Binding before the API server
// carries it out. It knows nothing of HTTP.
//
// The way of a bind: guards, mutators, the check of the merged metadata, the
// PreFlight of every plugin, and, where a plugin has something to do, an attempt
// that runs their PreBind and outlives the call.
package binder

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/pacing"
)

// Options of an Engine. All fields are required but Term and Recorder.
type Options struct {
	// Cached reads pods without a node, nodes, and what plugins watch, from a cache. What
	// it returns is never changed.
	Cached framework.Reader
	// Live reads the same from the API server, if the cache has nothing or says
	// something that would end the bind.
	Live framework.Reader
	// Settings are those in force until Configure changes them.
	Settings Settings
	// Replica identifies this process among the others, by letters and digits.
	Replica string
	// Term returns the number of the replica's current term, and whether it holds it:
	// only then is a bind allowed that relies on what an attempt wrote, and only on
	// what was written in the same term. Other replicas may have rolled back the rest.
	// It must be fast, and safe for concurrent use. It may be nil: then no other
	// replica ever does.
	Term func() (term int64, held bool)
	// Domain of the binder's own annotations.
	Domain string
	// Changes tells of changes of pods.
	Changes *framework.Hub
	// Events tells the pod what its bind waits for, and why it is refused.
	Events events.EventRecorder
	// Recorder records the work on binds. It may be nil.
	Recorder Recorder
	Clock    clock.WithDelayedExecution
}

func (o Options) validate() error {
	switch {
	case o.Cached == nil || o.Live == nil || o.Changes == nil || o.Events == nil || o.Clock == nil:
		return errors.New("engine: Cached, Live, Changes, Events and Clock are required")
	case o.Domain == "" || o.Replica == "" || strings.Contains(o.Replica, attemptSeparator):
		return fmt.Errorf("engine: Domain and Replica are required, and Replica has no %q", attemptSeparator)
	default:
		return o.Settings.validateNames(o.Domain)
	}
}

// Engine decides on Bindings. It is safe for concurrent use.
type Engine struct {
	o        Options
	settings atomic.Pointer[Settings]
	attempts *attempts
	// anyAttempt is an annotation as long as that of every attempt. It is never changed.
	anyAttempt map[string]string
	// requireKey and timeoutKey are the annotations that every call is looked through for.
	requireKey, timeoutKey string
	// waits holds, by attemptKey, the calls that had to wait; see waited.
	waits *utilcache.LRUExpireCache
	// waitsMu is held while an entry of waits is changed.
	waitsMu sync.Mutex
	seats   seats
	// exempt are the seats of calls for which isExempt returns true; see Exempt.
	exempt   seats
	isExempt atomic.Pointer[func(authenticationv1.UserInfo) bool]
	// draining is closed by drain.
	draining chan struct{}
	drain    func()
}

// New checks the options and returns the engine. It starts nothing.
func New(o Options) (*Engine, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	if o.Recorder == nil {
		o.Recorder = unrecorded{}
	}
	if o.Term == nil {
		o.Term = func() (int64, bool) { return 0, true }
	}
	draining := make(chan struct{})
	e := &Engine{
		o: o,
		attempts: &attempts{
			clock: o.Clock, cached: o.Cached, live: o.Live, changes: o.Changes, events: o.Events, recorder: o.Recorder,
			attemptKey: attemptAnnotation(o.Domain), term: o.Term, index: newIndex(), past: pacing.NewHistory(),
		},
		waits:    utilcache.NewLRUExpireCacheWithClock(rememberWaits, o.Clock),
		draining: draining,
		drain:    sync.OnceFunc(func() { close(draining) }),
	}
	e.requireKey, e.timeoutKey = requireAnnotation(o.Domain), timeoutAnnotation(o.Domain)
	e.anyAttempt = map[string]string{attemptAnnotation(o.Domain): e.newAttemptID()}
	e.settings.Store(&o.Settings)
	return e, nil
}

// Drain ends every hold: the calls that wait are told to call again, and so is
// every later one. It cannot be undone.
func (e *Engine) Drain() { e.drain() }

// Settle waits until every bind that was allowed has come to its outcome, or the
// context ends. Call it between Drain and Stop, while the caches still follow.
func (e *Engine) Settle(ctx context.Context) { e.attempts.settle(ctx) }

// Stop drains, ends the attempts where they are, and waits for them until the
// context ends. Nothing is undone: the repeated calls reach another replica.
func (e *Engine) Stop(ctx context.Context) error {
	e.drain()
	return e.attempts.stop(ctx)
}

// Bind decides on one Binding. It returns within the hold and before the
// context's deadline.
func (e *Engine) Bind(ctx context.Context, r Request) Decision {
	ctx, began := e.o.Recorder.Begin(ctx), e.o.Clock.Now()
	d := e.answer(ctx, r, began)
	e.o.Recorder.Decided(ctx, r, d, e.o.Clock.Since(began))
	return d
}

// answer decides on one Binding that came at the time.
func (e *Engine) answer(ctx context.Context, r Request, began time.Time) Decision {
	if !targetsNode(r.Binding) || !namesPod(r) {
		return Decision{PassThrough: true}
	}
	c := &call{Request: r, settings: e.settings.Load(), began: began}
	c.policy = c.settings.policyFor(r.Pod.Namespace)
	if c.policy.mode == ModeOff {
		return Decision{PassThrough: true}
	}
	c.DryRun = r.DryRun || c.policy.mode == ModeAudit
	d, pod := e.decide(ctx, c)
	if cutShort(ctx, d.Err) {
		// Nothing is known of the pod that it should be told.
		d, pod = d.deny(unfinished(r, d.Err)), nil
	}
	d = d.bounded()
	if c.DryRun {
		d = explain(c, d)
	}
	if c.policy.mode == ModeAudit && !d.PassThrough {
		d = audited(d)
	}
	if pod != nil && !r.DryRun {
		e.tell(c, pod, d)
	}
	return d
}

// decide decides on a Binding, and returns the pod unless the API server gives its
// own answer about it.
func (e *Engine) decide(ctx context.Context, c *call) (Decision, *corev1.Pod) {
	r := c.Request
	if err := guardTarget(r.Binding); err != nil {
		if c.settings.idle() {
			return Decision{PassThrough: true}, nil
		}
		return denied(err), nil
	}
	pod, err := e.pod(ctx, r)
	if pod == nil && err == nil {
		return Decision{PassThrough: true}, nil
	}
	if err != nil {
		c.key = attemptKey{pod: types.UID(r.Pod.String()), node: r.Binding.Target.Name}
		return e.later(c, err), pod
	}
	c.pod, c.key = pod, attemptKey{pod: pod.UID, node: r.Binding.Target.Name}
	before := e.waitedBefore(c)
	d := e.bind(ctx, c)
	if c.attempt != "" || before.calls > 0 {
		d.Attempt, d.Calls, d.Waited = c.attempt, before.calls+1, e.o.Clock.Since(before.since)
	}
	return d, pod
}

// bind decides on a Binding for a pod that can be bound.
func (e *Engine) bind(ctx context.Context, c *call) Decision {
	required, err := e.required(c)
	if err != nil {
		return denied(err)
	}
	if c.settings.idle() {
		if err := guardMerged(c.pod, c.Binding, nil, nil, nil); err != nil {
			return denied(err)
		}
		return Decision{PassThrough: true}
	}
	if c.budget, err = e.budget(c); err != nil {
		return denied(err)
	}
	if c.node, err = e.node(ctx, c.key.node); err != nil {
		return e.later(c, err)
	}
	c.plugins = takingPart(c.settings.Plugins, e.o.Domain, required, c.Binding, c.pod)
	if err := e.preview(ctx, c); err != nil {
		return c.preview.deny(err)
	}
	if c.DryRun {
		return e.rehearse(ctx, c)
	}
	return e.prepare(ctx, c)
}

// pod returns the pod to be bound. It returns nil when it is gone or bound: the
// API server then gives its own answer. The pod comes with the error that is about
// it.
func (e *Engine) pod(ctx context.Context, r Request) (*corev1.Pod, *framework.Error) {
	pod, reason := &corev1.Pod{}, ReadMissing
	if err := e.o.Cached.Get(ctx, r.Pod, pod); err == nil {
		if pod.Spec.NodeName == "" && guardPod(pod, r.Binding) == nil {
			return pod, nil
		}
		reason = ReadDoubted
	}
	// The cache lacks the pod, or what it holds would end the bind. It may be
	// behind, so the API server has the last word.
	pod = &corev1.Pod{}
	e.o.Recorder.ReadLive("", "Pod", reason)
	if err := e.o.Live.Get(ctx, r.Pod, pod); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, e.unreadable(framework.Object{Kind: "Pod", Namespace: r.Pod.Namespace, Name: r.Pod.Name}, err)
	}
	if pod.Spec.NodeName != "" {
		return nil, nil
	}
	stale := guardPod(pod, r.Binding)
	if r.Binding.UID != "" && r.Binding.UID != pod.UID {
		// It is not about this pod, which must not be told of it: anybody who can post a
		// review could have it told anything.
		return nil, stale
	}
	return pod, stale
}

// node returns the target.
func (e *Engine) node(ctx context.Context, name string) (*corev1.Node, *framework.Error) {
	key := types.NamespacedName{Name: name}
	node := &corev1.Node{}
	if err := e.o.Cached.Get(ctx, key, node); err == nil {
		return node, nil
	}
	return e.liveNode(ctx, name, ReadMissing)
}

// cutShort reports whether the decision failed because the call ended: its client has
// gone, or its time is over.
func cutShort(ctx context.Context, err *framework.Error) bool {
	return err != nil && ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
}

// unfinished is the answer to a call that ended before it was decided.
func unfinished(r Request, cause *framework.Error) *framework.Error {
	about := framework.Object{Kind: "Pod", Namespace: r.Pod.Namespace, Name: r.Pod.Name}
	err := framework.Wait(about, "the call ended before Prebind decided on it").Advise("repeat the Binding").Because(cause)
	err.Plugin = guardName
	return err
}

func (e *Engine) unreadable(object framework.Object, err error) *framework.Error {
	return framework.AsError(guardName, framework.FromAPI(object, "reading it from the API server", err).
		Advise("see whether the API server answers and whether Prebind may read it"))
}
