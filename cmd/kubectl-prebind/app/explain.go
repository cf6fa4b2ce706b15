// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/cmd/internal/cli"
	"github.com/prebind/prebind/cmd/kubectl-prebind/internal/dryrun"
	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/internal/replica"
	"github.com/prebind/prebind/internal/text"
	"github.com/prebind/prebind/internal/work"
	"github.com/prebind/prebind/mutators/bindinfo"
	"github.com/prebind/prebind/mutators/deviceinfo"
	"github.com/prebind/prebind/mutators/nodeinfo"
	"github.com/prebind/prebind/mutators/topology"
	"github.com/prebind/prebind/webhook"
)

// Exit codes of explain; a wrong command line has another one.
const (
	exitWait    = 1
	exitRefuse  = 2
	exitUnknown = 3
)

// verdictBound is the verdict for a pod that is bound.
const verdictBound binder.Verdict = "bound"

// explainOptions are the flags of explain.
type explainOptions struct {
	client      cli.Client
	own         string
	node        string
	annotations annotations
	output      format
	clock       clock.PassiveClock
}

func newExplainCommand() *cobra.Command {
	o := &explainOptions{clock: clock.RealClock{}, annotations: annotations{}}
	cmd := &cobra.Command{
		Use:   "explain POD",
		Short: "Show whether a pod could be bound to a node",
		Long: `Show whether a pod could be bound to a node, or how it was bound.

Without --node, the node is that of the newest Binding, if the events or the
nominated node of the pod, or leases in Prebind's namespace, show it.

For a pod that is bound, the command shows the node, the time and Prebind's
annotations. Otherwise, it posts a dry-run Binding to the API server, as a scheduler
would. It shows the annotations and labels that the pod would get, the verdict of
each PreBind plugin, and what the bind would wait for. It changes nothing. You need
permission to get pods and to create pods/binding; the optional ClusterRole
prebind-explain grants these for dry runs only.

Exit codes: 0 if the pod is or would be bound, 1 if it would wait, 2 if the bind
would be rejected, 3 if the result is unknown, for example because the API server
cannot reach Prebind.`,
		Example: `  kubectl prebind explain web-0 -n shop
  kubectl prebind explain train-1 --node node-7 --annotation device.prebind.dev/gpu=GPU-3 -o yaml`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return cli.WithCode(exitUnknown, o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0]))
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&o.node, "node", "", "Node of the bind. By default, the node that the scheduler has chosen last.")
	addOwnFlag(fs, &o.own)
	fs.Var(o.annotations, "annotation", "Annotation of the Binding, as `key=value`: one that a scheduler would set. Repeat the flag for others.")
	o.output.addFlag(fs)
	o.client.AddFlags(fs)
	return cmd
}

// annotations is a pflag.Value. Unlike a map of pflag, it does not split values at commas, which lists of devices and selectors contain.
type annotations map[string]string

// String implements pflag.Value.
func (annotations) String() string { return "" }

// Set implements pflag.Value.
func (a annotations) Set(s string) error {
	key, value, ok := strings.Cut(s, "=")
	if !ok {
		return fmt.Errorf("must be key=value, got %q", s)
	}
	a[key] = value
	return nil
}

// Type implements pflag.Value.
func (annotations) Type() string { return "stringToString" }

// report is the output of explain. Its JSON is stable.
type report struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Node      string `json:"node"`
	// Verdict is the result of the bind, from Prebind or the API server.
	Verdict binder.Verdict `json:"verdict"`
	// Since is when the pod was bound, and Annotations are those that Prebind writes, if the verdict is bound. Prebind is then nil.
	Since       metav1.Time       `json:"since,omitzero"`
	Annotations map[string]string `json:"annotations,omitempty"`
	// Reason is why the pod would not be bound.
	Reason string `json:"reason,omitempty"`
	// Prebind is the answer of Prebind. It is nil if Prebind does not take part in the bind.
	Prebind *binder.Explanation `json:"prebind,omitempty"`
	// Warnings are the warnings of the API server and of other webhooks.
	Warnings []string `json:"warnings,omitempty"`
}

// run prints the report. It posts a Binding if the pod is not bound.
func (o *explainOptions) run(ctx context.Context, out, notes io.Writer, name string) error {
	if err := o.output.validate(); err != nil {
		return err
	}
	client, err := o.client.Connect()
	if err != nil {
		return err
	}
	pod, err := client.CoreV1().Pods(client.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the pod: %w", err)
	}
	if pod.Spec.NodeName != "" {
		r := reportBound(pod)
		return o.output.write(out, r, r.textBound)
	}
	if o.node == "" {
		var source string
		if o.node, source = o.chosen(ctx, client, pod); o.node == "" {
			return cli.Usage(fmt.Errorf("--node: required, because no bind in progress, nominated node or event that you may read names the node of pod %s/%s; choose one of 'kubectl get nodes' that the pod's selector allows", pod.Namespace, pod.Name))
		}
		fmt.Fprintf(notes, "%s, from %s; choose another one with --node\n", text.Lines(o.node), source)
	}
	answer, err := dryrun.Explain(ctx, client.Config, pod, o.node, o.annotations)
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

// chosen returns the node of the newest Binding of the pod that the user can see, and where, or "".
func (o *explainOptions) chosen(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) (node, source string) {
	var newest time.Time
	offer := func(name string, at time.Time, from string) {
		if name != "" && at.After(newest) {
			node, newest, source = name, at, from+" of "+age(o.clock.Now(), at)+" ago"
		}
	}
	all, _ := replica.Statuses(ctx, client, o.own) // Tenants may not list leases.
	for _, s := range all {
		for _, f := range s.InFlight {
			// Replicas of earlier versions report no UID.
			if f.Namespace == pod.Namespace && f.Pod == pod.Name && (f.UID == pod.UID || f.UID == "") {
				offer(f.Node, f.Since.Time, "the Binding")
			}
		}
	}
	if node != "" {
		return node, source // It is newer than all events.
	}
	events, err := client.EventsV1().Events(pod.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "regarding.uid=" + string(pod.UID)})
	if err != nil { // Tenants may not list events either.
		events = &eventsv1.EventList{}
	}
	for _, e := range events.Items {
		// The note of a series is that of its first event.
		if e.Reason == work.ReasonRefused || e.Reason == work.ReasonWaiting {
			offer(work.NodeOf(e.Note), e.EventTime.Time, "the event "+e.Reason)
		}
	}
	if node == "" {
		return pod.Status.NominatedNodeName, "status.nominatedNodeName"
	}
	return node, source
}

// reportBound returns the report about a pod that is bound.
func reportBound(pod *corev1.Pod) *report {
	r := &report{Namespace: pod.Namespace, Pod: pod.Name, Node: pod.Spec.NodeName, Verdict: verdictBound, Annotations: maps.Clone(pod.Annotations)}
	maps.DeleteFunc(r.Annotations, func(key, _ string) bool { return !written(key) })
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			r.Since = c.LastTransitionTime
		}
	}
	return r
}

// written returns whether a mutator, a BindPolicy or Prebind itself writes the annotation. Other keys of Prebind are requests of users
// and schedulers, and do not show that Prebind took part in the bind.
func written(key string) bool {
	prefix, _, _ := strings.Cut(key, "/")
	owner, ours := strings.CutSuffix(prefix, "."+v1alpha1.Domain)
	mutators := []string{topology.Name, nodeinfo.Name, bindinfo.Name, deviceinfo.Name}
	return ours && (slices.Contains(mutators, owner) || strings.HasSuffix(owner, ".policy")) || key == framework.AttemptAnnotation
}

// decide sets the verdict. If the API server allows the dry run, decide uses the verdict of Prebind,
// because Prebind allows the dry run of a bind that it would hold or reject.
func (r *report) decide(answer error) error {
	var status apierrors.APIStatus
	switch {
	case answer == nil:
	case !errors.As(answer, &status):
		return fmt.Errorf("posting a dry-run Binding: %w", answer)
	// Without an answer of Prebind, a 429 is that of an overloaded API server.
	case r.Prebind == nil && (status.Status().Code >= http.StatusInternalServerError || apierrors.IsTooManyRequests(answer)):
		return undecided(answer)
	case apierrors.IsForbidden(answer) && r.Prebind == nil && strings.Contains(answer.Error(), "cannot create resource"):
		return fmt.Errorf("explain requires permission to create pods/binding in namespace %s; the ClusterRole prebind-explain grants it for dry runs only: %w", r.Namespace, answer)
	case apierrors.IsTooManyRequests(answer):
		r.Verdict, r.Reason = binder.VerdictWait, answer.Error()
	default:
		r.Verdict, r.Reason = binder.VerdictRefuse, answer.Error()
	}
	if x := r.Prebind; answer == nil && x != nil && x.Mode != binder.ModeAudit {
		r.Verdict, r.Reason = x.Verdict, reasonOf(x.Refusal)
	}
	return nil
}

// reasonOf returns the reason of a rejection, or an empty string for none.
func reasonOf(x *binder.Refusal) string {
	if x == nil {
		return ""
	}
	return (&framework.Error{Plugin: x.Plugin, Message: x.Message, Advice: x.Advice}).Error()
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

// textBound writes the report about a pod that is bound.
func (r *report) textBound(out *bytes.Buffer) {
	fmt.Fprintf(out, "Pod %s/%s: bound to node %s", r.Namespace, r.Pod, r.Node)
	if !r.Since.IsZero() { // The kubelet can be gone before it reports the pod.
		fmt.Fprintf(out, " since %s", r.Since.UTC().Format(time.RFC3339))
	}
	if waited := r.Annotations[bindinfo.Name+"."+v1alpha1.Domain+"/waited"]; waited != "" {
		fmt.Fprintf(out, ", after a wait of %s", oneLine(waited))
	}
	fmt.Fprintln(out)
	if len(r.Annotations) == 0 {
		fmt.Fprintln(out, "Prebind added no annotations: it did not take part in the bind, or had nothing to add.")
	}
	textAdded(out, &binder.Explanation{Annotations: r.Annotations})
}

// text writes the report in the text format.
func (r *report) text(out *bytes.Buffer) {
	verdicts := map[binder.Verdict]string{binder.VerdictBind: "would be bound", binder.VerdictWait: "would wait", binder.VerdictRefuse: "would be rejected"}
	fmt.Fprintf(out, "Bind of pod %s/%s to node %s: %s\n", r.Namespace, r.Pod, r.Node, verdicts[r.Verdict])
	if r.Reason != "" {
		fmt.Fprintf(out, "  %s\n", block(r.Reason))
	}
	x := r.Prebind
	if x == nil {
		fmt.Fprintln(out, "\nPrebind does not take part in this bind. Possible reasons: it is not installed; the namespace is exempt, or its mode\nis Off; all mutators and plugins are off; the API server decides by itself; or it cannot reach Prebind, and\nfailurePolicy is Ignore.")
		textWarnings(out, r.Warnings)
		return
	}
	if x.Mode == binder.ModeAudit {
		fmt.Fprintf(out, "\nPrebind is in mode Audit in this namespace: it only reports the following (verdict: %s).\n", x.Verdict)
		if x.Refusal != nil {
			fmt.Fprintf(out, "  %s\n", block(reasonOf(x.Refusal)))
		}
	}
	if len(x.Plugins) > 0 {
		fmt.Fprintln(out)
		writeTable(out, "PLUGIN\tVERDICT\tDETAIL", func(w io.Writer) { textPlugins(w, x.Plugins) })
	}
	textAdded(out, x)
	if x.Incomplete {
		fmt.Fprintln(out, "\nThe explanation is incomplete: it is longer than the API server allows.")
	}
	// Omit warnings about the dry run, because the lines of the plugins already contain them.
	own := slices.DeleteFunc(slices.Clone(x.Warnings), func(w string) bool { return strings.HasPrefix(w, "dry run: ") })
	textWarnings(out, slices.Concat(r.Warnings, own))
}

// textPlugins writes each plugin, with a line for each detail.
func textPlugins(w io.Writer, plugins []binder.PluginExplanation) {
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
}

// textAdded writes the annotations and labels that the pod would get.
func textAdded(out *bytes.Buffer, x *binder.Explanation) {
	if len(x.Annotations)+len(x.Labels) == 0 {
		return
	}
	fmt.Fprintln(out)
	writeTable(out, "ADDED\tKEY\tVALUE", func(w io.Writer) {
		for _, key := range slices.Sorted(maps.Keys(x.Annotations)) {
			fmt.Fprintf(w, "annotation\t%s\t%s\n", key, oneLine(x.Annotations[key]))
		}
		for _, key := range slices.Sorted(maps.Keys(x.Labels)) {
			fmt.Fprintf(w, "label\t%s\t%s\n", key, x.Labels[key])
		}
	})
}

// oneLine makes the value of an annotation safe for a line of the text format.
func oneLine(value string) string { return text.Clip(value, len(value)) }

func textWarnings(out *bytes.Buffer, warnings []string) {
	if len(warnings) > 0 {
		fmt.Fprintf(out, "\nWarning: %s\n", strings.Join(warnings, "\nWarning: "))
	}
}
