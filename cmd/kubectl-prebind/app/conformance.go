// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"github.com/prebind/prebind/cmd/internal/cli"
	"github.com/prebind/prebind/cmd/kubectl-prebind/internal/conformance"
)

// conformanceOptions are the flags of conformance.
type conformanceOptions struct {
	conformance.Options
	client  cli.Client
	run     string
	junit   string
	cleanup bool
}

func newConformanceCommand() *cobra.Command {
	o := &conformanceOptions{}
	cmd := &cobra.Command{
		Use:   "conformance --scheduler-name=NAME",
		Short: "Test a scheduler on a cluster with Prebind",
		Long: `Test whether a scheduler follows the contract of Prebind for schedulers, on a
running cluster with Prebind.

The command creates namespaces, pods, volumes and admission configurations of its
own, observes how the scheduler binds the pods, and removes everything. It adds a
label to nodes and a driver to CSINodes, and removes both. The pods need no
resources, and their volumes cannot be mounted.

You need permission to create and delete these objects; the documentation contains
a ClusterRole. The mode of Prebind must be Enforce for new namespaces.
` + cli.Documentation("conformance.md") + ` describes the checks.

Checks:
` + conformance.Describe() + `
Exit codes: 0 if no check fails, 1 if a check fails, 2 if a check or the run could
not be completed, for example because a permission is missing, 3 if a check has no result because the cluster was overloaded.`,
		Example: `  kubectl prebind conformance --scheduler-name=my-scheduler
  kubectl prebind conformance --scheduler-name=my-scheduler --run='wait|refused' --junit=report.xml
  kubectl prebind conformance --cleanup`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Progress = cmd.ErrOrStderr()
			return cli.WithCode(exitIncomplete, o.execute(cmd.Context(), cmd.OutOrStdout()))
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&o.Scheduler, "scheduler-name", "", "Name of the scheduler (spec.schedulerName of pods). Required.")
	fs.StringVar(&o.run, "run", "", "Regular expression that selects checks by name. The check bind always runs.")
	fs.DurationVar(&o.Wait, "wait", 35*time.Second, "Time for which Prebind makes a pod wait in the check wait.")
	fs.DurationVar(&o.Timeout, "timeout", 2*time.Minute, "Time in which the scheduler must bind a pod that does not have to wait, or post a Binding again.")
	fs.IntVar(&o.Burst, "burst", 50, "Number of pods in the check burst.")
	fs.StringSliceVar(&o.Nodes, "nodes", nil, "Nodes that the checks use, at least two. By default, two nodes that are Ready and have no taints.")
	fs.StringVar(&o.BindingAnnotation, "binding-annotation", "", "Key of an annotation that the scheduler sets on every Binding, for the check wait.")
	fs.BoolVar(&o.NoFailureEvents, "no-failure-events", false, "Fail the check wait if the scheduler reports a warning about a pod that waits.")
	fs.StringVar(&o.NamespacePrefix, "namespace-prefix", "prebind-conformance-", "Prefix of the names of the namespaces that the command creates.")
	fs.StringToStringVar(&o.PodLabels, "pod-labels", nil, "Labels of the pods, as key=value, such as the queue of the scheduler.")
	fs.StringVar(&o.Image, "image", "registry.k8s.io/pause:3.10", "Image of the pods. They need not start.")
	fs.StringVar(&o.junit, "junit", "", "File for the results as JUnit XML.")
	fs.BoolVar(&o.cleanup, "cleanup", false, "Remove the objects of all runs with the namespace prefix, also of runs in progress, and exit.")
	o.client.AddFlags(fs)
	fs.Lookup("namespace").Hidden = true // The command creates its namespaces.
	return cmd
}

// execute runs the checks, or removes the objects of earlier runs.
func (o *conformanceOptions) execute(ctx context.Context, out io.Writer) error {
	if o.run != "" {
		selected, err := regexp.Compile(o.run)
		if err != nil {
			return cli.Usage(fmt.Errorf("--run: %w", err))
		}
		o.Run = selected
	}
	if err := o.Validate(); err != nil && !o.cleanup {
		return cli.Usage(err)
	}
	client, err := o.client.Connect()
	if err != nil {
		return err
	}
	if o.cleanup {
		return removeRuns(ctx, client, o.NamespacePrefix, out)
	}
	report, err := conformance.Run(ctx, client.Config, o.Options)
	if report != nil && ctx.Err() == nil {
		err = errors.Join(err, report.WriteText(out), writeFile("--junit", o.junit, report.WriteJUnit))
	}
	if err != nil {
		return err
	}
	return outcome(report)
}

// removeRuns removes the objects of earlier runs.
func removeRuns(ctx context.Context, client kubernetes.Interface, prefix string, out io.Writer) error {
	runs, err := conformance.Cleanup(ctx, client, prefix)
	for _, run := range runs {
		fmt.Fprintln(out, "run", run)
	}
	if err == nil {
		fmt.Fprintf(out, "Runs removed: %d\n", len(runs))
	}
	return err
}

// Exit codes of conformance; a wrong command line has another one.
const (
	// exitFail: a check fails.
	exitFail = 1
	// exitIncomplete: a check or the run could not be completed.
	exitIncomplete = 2
	// exitNoResult: no check fails, and a check has no result.
	exitNoResult = 3
)

// outcome returns the error for the results of a run. It is nil if no check fails.
func outcome(report *conformance.Report) error {
	switch {
	case report.Any(conformance.Fail):
		return cli.ExitError{Code: exitFail}
	case report.Any(conformance.Errored):
		return errors.New("some checks could not be completed")
	case report.Any(conformance.NoResult):
		return cli.ExitError{Code: exitNoResult}
	}
	return nil
}
