// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package after is an example of a PreBind plugin that only waits: it delays the bind of a
// pod until the Jobs that the pod names are complete. docs/writing-a-plugin.md describes such plugins.
package after

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// Name of the plugin. A pod names its Jobs in the annotation after.prebind.dev/jobs.
const Name = "after"

// Registration returns the entry for app.WithPlugin.
func Registration() framework.Registration {
	return framework.Registration{
		Name: Name, Description: "waits for the Jobs that the pod names", AnnotationsHelp: "jobs",
		Arguments: func() framework.Arguments { return &arguments{} },
		Watches:   []client.Object{&batchv1.Job{}},
		New: framework.Build(func(_ framework.Handle, a *arguments) (framework.Plugin, error) {
			return framework.NewPlugin(Name, a.decide).OnAnnotation(), nil
		}),
	}
}

// arguments are arguments.after in the configuration file, and flags.
type arguments struct {
	MaxAge metav1.Duration `json:"maxAge"`
}

// AddFlags implements framework.Arguments.
func (a *arguments) AddFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&a.MaxAge.Duration, "after-max-age", a.MaxAge.Duration, "Maximum time since a Job completed. 0 means no limit.")
}

// Validate implements framework.Arguments.
func (a *arguments) Validate(path *field.Path) field.ErrorList {
	if a.MaxAge.Duration < 0 {
		return field.ErrorList{field.Invalid(path.Child("maxAge"), a.MaxAge, "must not be negative")}
	}
	return nil
}

// decide reads the Jobs and returns what to wait for.
func (a *arguments) decide(ctx context.Context, cache framework.Reader, bc *framework.BindContext) (framework.Verdict, error) {
	parameter := bc.Parameter(Name, "jobs")
	names := strings.Split(parameter.Value, ",")
	if len(names) > 10 || slices.ContainsFunc(names, func(name string) bool { return len(validation.IsDNS1123Subdomain(name)) > 0 }) {
		return framework.Verdict{}, parameter.Invalid("must be at most ten names of Jobs, separated by commas")
	}
	for _, name := range names {
		job, err := framework.Get(ctx, cache, &batchv1.Job{}, bc.Pod.Namespace, name)
		if err != nil {
			return framework.Verdict{}, err
		}
		object := framework.Object{Kind: "Job", Namespace: bc.Pod.Namespace, Name: name}
		if wait, err := a.wait(object, job, bc.Now); err != nil || wait.For != "" {
			return framework.Verdict{Wait: wait}, err
		}
	}
	return framework.Verdict{}, nil
}

// wait returns what to wait for, or why the pod can never be bound.
func (a *arguments) wait(object framework.Object, job *batchv1.Job, now time.Time) (framework.Wait, error) {
	switch {
	case job == nil:
		return framework.Wait{Object: object, For: "the Job to be created"}, nil
	case is(job, batchv1.JobFailed):
		return framework.Wait{}, framework.Refuse(object, "the Job failed").Advise("fix the Job, or remove it from the annotation")
	case !is(job, batchv1.JobComplete):
		return framework.Wait{Object: object, For: "the Job to complete"}, nil
	case a.MaxAge.Duration > 0 && job.Status.CompletionTime != nil && now.Sub(job.Status.CompletionTime.Time) > a.MaxAge.Duration:
		return framework.Wait{}, framework.Refuse(object, "the Job completed more than %s ago", a.MaxAge.Duration).Advise("run the Job again")
	}
	return framework.Wait{}, nil
}

func is(job *batchv1.Job, condition batchv1.JobConditionType) bool {
	return slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == condition && c.Status == corev1.ConditionTrue
	})
}
