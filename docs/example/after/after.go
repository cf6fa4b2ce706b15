// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package after is an example of a PreBind plugin that only waits: a pod that names Jobs
// is bound when they have completed. docs/writing-a-plugin.md explains it.
package after

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/prebind/prebind/binder/framework"
)

// Name of the plugin. A pod names its Jobs in the annotation after.prebind.dev/jobs.
const Name = "after"

// Registration is the entry for app.WithPlugin.
func Registration() framework.Registration {
	jobs := rbacv1.PolicyRule{APIGroups: []string{"batch"}, Resources: []string{"jobs"}, Verbs: []string{"get", "list", "watch"}}
	return framework.Registration{
		Name: Name, Description: "lets a pod wait for the Jobs that it names", Annotations: "jobs",
		Arguments: func() framework.Arguments { return &arguments{} },
		Watches:   framework.Always(&batchv1.Job{}),
		Permissions: func(framework.Arguments) (framework.Permissions, error) {
			return framework.Permissions{Cluster: []rbacv1.PolicyRule{jobs}}, nil
		},
		New: func(h framework.Handle, a framework.Arguments) (framework.PreBinder, error) {
			args, err := framework.ArgumentsAs[*arguments](a)
			return &plugin{h: h, arguments: args}, err
		},
	}
}

// arguments are arguments.after in the configuration file, and flags.
type arguments struct {
	MaxAge time.Duration `yaml:"maxAge"`
}

// AddFlags implements framework.Arguments.
func (a *arguments) AddFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&a.MaxAge, "after-max-age", a.MaxAge, "Maximum time since a Job completed. 0 is no limit.")
}

// Validate implements framework.Arguments.
func (a *arguments) Validate() []framework.Problem {
	if a.MaxAge < 0 {
		return framework.InvalidField("maxAge", fmt.Errorf("must not be negative, got %s", a.MaxAge))
	}
	return nil
}

type plugin struct {
	h framework.Handle
	*arguments
}

// Name implements framework.PreBinder.
func (*plugin) Name() string { return Name }

// Asked implements framework.OnAnnotation: the plugin takes part if the annotation is there.
func (*plugin) Asked() framework.Source { return framework.ByBindingOrPod }

// found are the Jobs, in the order of the annotation; nil for one that does not exist.
var found = framework.NewExtensionKey[[]*batchv1.Job](Name)

// SetupBindContextExtension reads the Jobs.
func (p *plugin) SetupBindContextExtension(ctx context.Context, reader framework.Reader, bc *framework.BindContext) error {
	names, _ := jobNames(bc) // PreFlight rejects invalid names.
	jobs := make([]*batchv1.Job, len(names))
	for i, name := range names {
		var err error
		if jobs[i], err = framework.Get(ctx, reader, &batchv1.Job{}, bc.Pod.Namespace, name); err != nil {
			return err
		}
	}
	found.Set(bc, jobs)
	return nil
}

// PreFlight decides: bind, wait for the first Job that has not completed, or reject.
func (p *plugin) PreFlight(bc *framework.BindContext) (framework.Next, error) {
	names, invalid := jobNames(bc)
	jobs, err := found.Get(bc)
	if err := cmp.Or(invalid, err); err != nil {
		return framework.Run, err
	}
	for i, name := range names {
		about := framework.RefTo(&batchv1.Job{}, bc.Pod.Namespace, name).Object()
		waits, err := p.decide(about, jobs[i], bc.Now)
		if err != nil {
			return framework.Run, err
		}
		if waits != "" {
			bc.WouldWait(framework.Waiting{Object: about, For: waits})
			return framework.Run, nil
		}
	}
	return framework.Skip, nil
}

// decide returns what to wait for, nothing if the Job has completed, or why the pod can
// never be bound.
func (p *plugin) decide(about framework.Object, job *batchv1.Job, now time.Time) (string, error) {
	switch {
	case job == nil:
		return "the Job to be created", nil
	case is(job, batchv1.JobFailed):
		return "", framework.Refuse(about, "the Job has failed").Advise("make it succeed, or remove it from the pod's annotation")
	case !is(job, batchv1.JobComplete):
		return "the Job to complete", nil
	case p.MaxAge > 0 && job.Status.CompletionTime != nil && now.Sub(job.Status.CompletionTime.Time) > p.MaxAge:
		return "", framework.Refuse(about, "the Job completed more than %s ago", p.MaxAge).Advise("run it again")
	default:
		return "", nil
	}
}

// PreBind waits until PreFlight has nothing to wait for.
func (p *plugin) PreBind(ctx context.Context, bc *framework.BindContext) error {
	return framework.AwaitReady(ctx, p.h, bc, p)
}

// jobNames returns the names that the Binding, or else the pod, gives.
func jobNames(bc *framework.BindContext) ([]string, error) {
	parameter := framework.Parameters(framework.Domain, Name, framework.ByBindingOrPod, bc.Binding, bc.Pod)["jobs"]
	names := strings.Split(parameter.Value, ",")
	if len(names) > 10 || slices.ContainsFunc(names, func(name string) bool { return len(validation.IsDNS1123Subdomain(name)) > 0 }) {
		return nil, framework.Invalid(parameter.On, "its annotation "+parameter.Annotation+" does not name Jobs",
			parameter.Field("must be at most ten names separated by commas")).Advise("correct the annotation")
	}
	return names, nil
}

func is(job *batchv1.Job, condition batchv1.JobConditionType) bool {
	return slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == condition && c.Status == corev1.ConditionTrue
	})
}
