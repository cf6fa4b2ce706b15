// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package after is an example of a PreBind plugin that only waits: a pod that names
// Jobs is bound when they have completed. docs/writing-a-plugin.md builds it, step by
// step.
package after

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/cmd/prebind/app"
)

// Name of the plugin.
const Name = "after"

// jobsKey is the annotation after.<domain>/jobs: names of Jobs in the pod's
// namespace, separated by commas.
const jobsKey = "jobs"

// arguments are arguments.after in the configuration file, and flags.
type arguments struct {
	MaxAge time.Duration `yaml:"maxAge"`
}

// AddFlags implements app.Arguments.
func (a *arguments) AddFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&a.MaxAge, "after-max-age", a.MaxAge, "How long ago a Job may have completed that the plugin after still takes. 0 is however long.")
}

// Validate implements app.Arguments.
func (a *arguments) Validate() []app.Problem {
	if a.MaxAge < 0 {
		return []app.Problem{{Field: "maxAge", Err: fmt.Errorf("%s is negative", a.MaxAge)}}
	}
	return nil
}

// Plugin is the entry for app.WithPlugin.
func Plugin() app.Plugin {
	return app.Plugin{
		Name:        Name,
		Description: "lets a pod wait for the Jobs that it names",
		Annotations: jobsKey,
		Arguments:   func() app.Arguments { return &arguments{} },
		Watches: func(app.Arguments) map[string]client.Object {
			return map[string]client.Object{"Job": &batchv1.Job{}}
		},
		Permissions: func(app.Arguments, string) ([]app.Permission, error) {
			return []app.Permission{
				{Group: "batch", Resource: "jobs", Verb: "get"},
				{Group: "batch", Resource: "jobs", Verb: "list"},
				{Group: "batch", Resource: "jobs", Verb: "watch"},
			}, nil
		},
		Build: func(d app.Deps) (framework.PreBinder, error) {
			a, ok := d.Arguments.(*arguments)
			if !ok {
				return nil, errors.New("the arguments are not those of this plugin")
			}
			return &plugin{live: d.Live, cached: d.Cached, changes: d.Changes, clock: d.Clock, domain: d.Domain, maxAge: a.MaxAge}, nil
		},
	}
}

type plugin struct {
	cached, live client.Reader
	changes      *framework.Hub
	clock        clock.PassiveClock
	domain       string
	maxAge       time.Duration
}

var (
	_ framework.PreBinder    = (*plugin)(nil)
	_ framework.PreFlighter  = (*plugin)(nil)
	_ framework.OnAnnotation = (*plugin)(nil)
)

// Name implements framework.PreBinder.
func (*plugin) Name() string { return Name }

// Asked lets pods ask for it, and not only schedulers.
func (*plugin) Asked() framework.Source { return framework.ByBindingOrPod }

// PreFlight looks for what the bind would wait for, or refuses it.
func (p *plugin) PreFlight(ctx context.Context, bc *framework.BindContext) (framework.Next, error) {
	waiting, err := p.first(ctx, bc)
	if err != nil || waiting == (framework.Waiting{}) {
		return framework.Skip, err
	}
	bc.WouldWait(waiting)
	return framework.Run, nil
}

// PreBind waits. It subscribes before it looks, so that no change is missed.
func (p *plugin) PreBind(ctx context.Context, bc *framework.BindContext) error {
	jobs, err := p.jobs(bc)
	if err != nil {
		return err
	}
	changes := p.changes.Subscribe()
	defer changes.Close()
	for _, name := range jobs {
		changes.Add(framework.Key{Kind: "Job", Namespace: bc.Pod.Namespace, Name: name})
	}
	for {
		waiting, err := p.first(ctx, bc)
		if err != nil || waiting == (framework.Waiting{}) {
			return err
		}
		bc.Waiting(waiting)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changes.C():
		}
	}
}

// PreBindRollBack has nothing to undo: nothing was written.
func (*plugin) PreBindRollBack(context.Context, *framework.BindContext) error { return nil }

// jobs are the names that the Binding, or else the pod, gives.
func (p *plugin) jobs(bc *framework.BindContext) ([]string, error) {
	parameter, ok := framework.Parameters(p.domain, Name, p.Asked(), bc.Binding, bc.Pod)[jobsKey]
	if !ok {
		return nil, nil
	}
	names := strings.Split(parameter.Value, ",")
	if slices.Contains(names, "") {
		return nil, framework.Invalid(parameter.On, "its annotation "+parameter.Annotation+" names no Job", parameter.Field("must be names separated by commas")).
			Advise("correct the annotation")
	}
	return names, nil
}

// first returns what has to be waited for first, the zero Waiting if nothing, or why
// the pod cannot be bound.
func (p *plugin) first(ctx context.Context, bc *framework.BindContext) (framework.Waiting, error) {
	names, err := p.jobs(bc)
	if err != nil {
		return framework.Waiting{}, err
	}
	for _, name := range names {
		about := framework.Object{Kind: "Job", Namespace: bc.Pod.Namespace, Name: name}
		job, err := p.job(ctx, types.NamespacedName{Namespace: bc.Pod.Namespace, Name: name})
		if err != nil {
			return framework.Waiting{}, framework.FromAPI(about, "reading it", err)
		}
		if what, err := p.decide(about, job); err != nil || what != "" {
			return framework.Waiting{Object: about, For: what}, err
		}
	}
	return framework.Waiting{}, nil
}

// decide is the whole of the plugin: what to wait for, or why never. The Job is nil
// if there is none.
func (p *plugin) decide(about framework.Object, job *batchv1.Job) (string, error) {
	switch {
	case job == nil:
		return "the Job to be made", nil
	case is(job, batchv1.JobFailed):
		return "", framework.Refuse(about, "the Job has failed").Advise("make it succeed, or take it out of the pod's annotation")
	case !is(job, batchv1.JobComplete):
		return "the Job to complete", nil
	case p.maxAge > 0 && job.Status.CompletionTime != nil && p.clock.Since(job.Status.CompletionTime.Time) > p.maxAge:
		return "", framework.Refuse(about, "the Job has completed more than %s ago", p.maxAge).Advise("run it again")
	default:
		return "", nil
	}
}

// job returns the Job, or nil. The cache alone refuses nothing: whatever in it would
// end the bind is read live.
func (p *plugin) job(ctx context.Context, key types.NamespacedName) (*batchv1.Job, error) {
	job := &batchv1.Job{}
	if err := p.cached.Get(ctx, key, job); err == nil && !is(job, batchv1.JobFailed) {
		return job, nil
	}
	job = &batchv1.Job{}
	err := p.live.Get(ctx, key, job)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return job, err
}

func is(job *batchv1.Job, condition batchv1.JobConditionType) bool {
	return slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == condition && c.Status == corev1.ConditionTrue
	})
}
