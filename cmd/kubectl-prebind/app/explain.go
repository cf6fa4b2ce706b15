// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/cmd/internal/cli"
	"github.com/prebind/prebind/cmd/kubectl-prebind/internal/dryrun"
	"github.com/prebind/prebind/webhook"
)

// Exit codes of explain; a wrong command line has another one.
const (
	exitWait    = 1
	exitRefuse  = 2
	exitUnknown = 3
)

// explainOptions are the flags of explain.
type explainOptions struct {
	client      cli.Client
	node        string
	annotations map[string]string
	output      format
}

func newExplainCommand() *cobra.Command {
	o := &explainOptions{}
	cmd := &cobra.Command{
		Use:   "explain POD --node NODE",
		Short: "Show whether a pod could be bound to a node",
		Long: `Show whether a pod could be bound to a node.

The command posts a dry-run Binding to the API server, as a scheduler would. It
shows the annotations and labels that the pod would get, the verdict of each
PreBind plugin, and what the bind would wait for. It changes nothing. You need
permission to get pods and to create pods/binding; the optional ClusterRole
prebind-explain grants these for dry runs only.

Exit codes: 0 if the pod would be bound, 1 if it would wait, 2 if the bind would
be rejected, 3 if the result is unknown, for example because the API server
cannot reach Prebind.`,
		Example: `  kubectl prebind explain web-0 --node node-7 -n shop
  kubectl prebind explain train-1 --node node-7 --annotation device.prebind.dev/gpu=GPU-3 -o yaml`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return cli.WithCode(exitUnknown, o.run(cmd.Context(), cmd.OutOrStdout(), args[0]))
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&o.node, "node", "", "Node of the bind. Required.")
	fs.StringToStringVar(&o.annotations, "annotation", nil, "Annotations of the Binding, as key=value: those that a scheduler would set.")
	o.output.addFlag(fs)
	o.client.AddFlags(fs)
	return cmd
}

// report is the output of explain. Its JSON is stable.
type report struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Node      string `json:"node"`
	// Verdict is the result of the bind, from Prebind or the API server.
	Verdict binder.Verdict `json:"verdict"`
	// Reason is why the pod would not be bound.
	Reason string `json:"reason,omitempty"`
	// Prebind is the answer of Prebind. It is nil if Prebind does not take part in the bind.
	Prebind *binder.Explanation `json:"prebind,omitempty"`
	// Warnings are the warnings of the API server and of other webhooks.
	Warnings []string `json:"warnings,omitempty"`
}

// run posts the Binding and prints the report.
func (o *explainOptions) run(ctx context.Context, out io.Writer, name string) error {
	if o.node == "" {
		return cli.Usage(errors.New("--node: required"))
	}
	if err := o.output.validate(); err != nil {
		return err
	}
	config, namespace, err := o.client.Config()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("setting up a client: %w", err)
	}
	pod, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the pod: %w", err)
	}
	if pod.Spec.NodeName != "" {
		return fmt.Errorf("pod %s/%s: already bound to node %s; explain a pod that is not bound, such as a copy with another name", pod.Namespace, pod.Name, pod.Spec.NodeName)
	}
	answer, err := dryrun.Explain(ctx, config, pod, o.node, o.annotations)
	if err != nil {
		return err
	}
	r := &report{
		Namespace: pod.Namespace, Pod: pod.Name, Node: o.node, Verdict: binder.VerdictBind,
		Prebind: answer.Prebind, Warnings: answer.Warnings,
	}
	if err := r.decide(answer.Err); err != nil {
		return err
	}
	if err := o.output.write(out, r, r.text); err != nil {
		return err
	}
	return map[binder.Verdict]error{binder.VerdictWait: cli.ExitError{Code: exitWait}, binder.VerdictRefuse: cli.ExitError{Code: exitRefuse}}[r.Verdict]
}

// decide sets the verdict. If the API server allows the dry run, decide uses the verdict of Prebind,
// because Prebind allows the dry run of a bind that it would hold or reject.
func (r *report) decide(answer error) error {
	var status apierrors.APIStatus
	switch {
	case answer == nil:
	case !errors.As(answer, &status):
		return fmt.Errorf("posting a dry-run Binding: %w", answer)
	case r.Prebind == nil && status.Status().Code >= http.StatusInternalServerError:
		return undecided(answer)
	case apierrors.IsForbidden(answer) && r.Prebind == nil && strings.Contains(answer.Error(), "cannot create resource"):
		return fmt.Errorf("explain requires permission to create pods/binding in namespace %s; the ClusterRole prebind-explain grants it for dry runs only: %w", r.Namespace, answer)
	case apierrors.IsTooManyRequests(answer):
		r.Verdict, r.Reason = binder.VerdictWait, answer.Error()
	default:
		r.Verdict, r.Reason = binder.VerdictRefuse, answer.Error()
	}
	if x := r.Prebind; answer == nil && x != nil && x.Mode != binder.ModeAudit {
		r.Verdict = x.Verdict
		if x.Refusal != nil {
			r.Reason = (&framework.Error{Plugin: x.Refusal.Plugin, Message: x.Refusal.Message, Advice: x.Refusal.Advice}).Error()
		}
	}
	return nil
}

// undecided returns the error for an API server that could not decide. The usual cause is that it
// cannot call a webhook.
func undecided(answer error) error {
	_, after, failing := strings.Cut(answer.Error(), "failed calling webhook \"")
	name, _, _ := strings.Cut(after, "\"")
	switch {
	case !failing:
		return fmt.Errorf("the API server could not decide: %w", answer)
	case name == webhook.Name:
		return fmt.Errorf("the API server cannot reach Prebind, so it binds no pod outside the exempt namespaces; run 'kubectl prebind status', and check the pods and the Service in Prebind's namespace, the network from the API server to port 9443, and the caBundle of the webhook configuration: %w", answer)
	default:
		return fmt.Errorf("the API server cannot call the webhook %q, which is not Prebind: %w", name, answer)
	}
}

// text writes the report in the text format.
func (r *report) text(out io.Writer) error {
	verdicts := map[binder.Verdict]string{binder.VerdictBind: "would be bound", binder.VerdictWait: "would wait", binder.VerdictRefuse: "would be rejected"}
	fmt.Fprintf(out, "Bind of pod %s/%s to node %s: %s\n", r.Namespace, r.Pod, r.Node, verdicts[r.Verdict])
	if r.Reason != "" {
		fmt.Fprintf(out, "  %s\n", r.Reason)
	}
	x := r.Prebind
	if x == nil {
		fmt.Fprintln(out, "\nPrebind does not take part in this bind. Possible reasons: it is not installed; the namespace is exempt, or its mode\nis Off; all mutators and plugins are off; the API server decides by itself; or it cannot reach Prebind, and\nfailurePolicy is Ignore.")
		return textWarnings(out, r.Warnings)
	}
	if x.Mode == binder.ModeAudit {
		fmt.Fprintf(out, "\nPrebind is in mode Audit in this namespace: it only reports the following (verdict: %s).\n", x.Verdict)
	}
	if len(x.Plugins) > 0 {
		fmt.Fprintln(out)
		if err := textPlugins(out, x.Plugins); err != nil {
			return err
		}
	}
	if err := textAdded(out, x); err != nil {
		return err
	}
	if x.Incomplete {
		fmt.Fprintln(out, "\nThe explanation is incomplete: it is longer than the API server allows.")
	}
	// Omit warnings about the dry run, because the lines of the plugins already contain them.
	own := slices.DeleteFunc(slices.Clone(x.Warnings), func(w string) bool { return strings.HasPrefix(w, "dry run: ") })
	return textWarnings(out, slices.Concat(r.Warnings, own))
}

// textPlugins writes each plugin, with a line for each detail.
func textPlugins(out io.Writer, plugins []binder.PluginExplanation) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "PLUGIN\tVERDICT\tDETAIL")
	for _, p := range plugins {
		var details []string
		if p.Refusal != nil {
			details = append(details, strings.TrimPrefix(p.Refusal.Object+": ", ": ")+p.Refusal.Message)
			if p.Refusal.Advice != "" {
				details = append(details, p.Refusal.Advice)
			}
		} else {
			for _, what := range p.WaitsFor {
				details = append(details, "waiting for "+what)
			}
		}
		details = append(details, p.Would...)
		fmt.Fprintf(w, "%s\t%s\t%s\n", p.Name, p.Verdict, strings.Join(details, "\n\t\t"))
		for _, f := range p.Findings {
			fmt.Fprintf(w, "  %s\t%s\t%s\n", f.Name, f.Verdict, f.Message)
		}
	}
	return w.Flush()
}

// textAdded writes the annotations and labels that the pod would get.
func textAdded(out io.Writer, x *binder.Explanation) error {
	if len(x.Annotations)+len(x.Labels) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "ADDED\tKEY\tVALUE")
	add := func(kind string, values map[string]string) {
		for _, key := range slices.Sorted(maps.Keys(values)) {
			fmt.Fprintf(w, "%s\t%s\t%s\n", kind, key, values[key])
		}
	}
	add("annotation", x.Annotations)
	add("label", x.Labels)
	return w.Flush()
}

func textWarnings(out io.Writer, warnings []string) error {
	for i, w := range warnings {
		if i == 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprintf(out, "Warning: %s\n", w)
	}
	return nil
}
