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
	"sync"
	"text/tabwriter"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/webhook"
)

// Exit codes of explain.
const (
	exitWait    = 1
	exitRefuse  = 2
	exitUnknown = 3
)

// webhookName is the name of the webhook in the shipped configuration.
const webhookName = "pods-binding.prebind.dev"

// explainOptions are the flags of prebind explain.
type explainOptions struct {
	user        userClient
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
		Example: `  prebind explain web-0 --node node-7 -n shop
  prebind explain train-1 --node node-7 --annotation device.prebind.dev/gpu=GPU-3 -o yaml`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			err := o.run(cmd.Context(), cmd.OutOrStdout(), args[0])
			var exit exitError
			if err != nil && !errors.As(err, &exit) {
				err = exitError{code: exitUnknown, err: err}
			}
			return err
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&o.node, "node", "", "Node of the bind. Required.")
	fs.StringToStringVar(&o.annotations, "annotation", nil, "Annotations of the Binding, as key=value: those that a scheduler would set.")
	o.output.addFlag(fs)
	o.user.addFlags(fs)
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
		return errors.New("--node: required")
	}
	if err := o.output.validate(); err != nil {
		return err
	}
	config, namespace, err := o.user.config()
	if err != nil {
		return err
	}
	warnings := &warningList{}
	config.WarningHandlerWithContext = warnings
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
	warnings.take()
	r, err := o.explain(pod, post(ctx, client, o.binding(pod)), warnings.take())
	if err != nil {
		return err
	}
	if err := o.output.write(out, r, r.text); err != nil {
		return err
	}
	return map[binder.Verdict]error{binder.VerdictWait: exitError{code: exitWait}, binder.VerdictRefuse: exitError{code: exitRefuse}}[r.Verdict]
}

// binding returns the Binding that a scheduler would post, with the request to explain it.
func (o *explainOptions) binding(pod *corev1.Pod) *corev1.Binding {
	annotations := maps.Clone(o.annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[webhook.ExplainAnnotation] = "true"
	return &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Annotations: annotations},
		Target:     corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: o.node},
	}
}

// post posts the Binding as a dry run. By default, the client would repeat it after a 429.
func post(ctx context.Context, client kubernetes.Interface, b *corev1.Binding) error {
	return client.CoreV1().RESTClient().Post().
		Namespace(b.Namespace).Resource("pods").Name(b.Name).SubResource("binding").
		VersionedParams(&metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}, scheme.ParameterCodec).
		MaxRetries(0).Body(b).Do(ctx).Error()
}

// explain creates the report from the API server's answer and its warnings.
func (o *explainOptions) explain(pod *corev1.Pod, answer error, warnings []string) (*report, error) {
	r := &report{Namespace: pod.Namespace, Pod: pod.Name, Node: o.node, Verdict: binder.VerdictBind}
	for _, w := range warnings {
		x, err := webhook.DecodeExplanation(w)
		if err != nil {
			return nil, fmt.Errorf("%w: use the version of prebind that runs in the cluster", err)
		}
		if x == nil {
			r.Warnings = append(r.Warnings, w)
			continue
		}
		r.Prebind = x
	}
	return r, r.decide(answer)
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
	case name == webhookName:
		return fmt.Errorf("the API server cannot reach Prebind, so it binds no pod outside the exempt namespaces; run 'prebind status', and check the pods and the Service in Prebind's namespace, the network from the API server to port 9443, and the caBundle of the webhook configuration: %w", answer)
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
		name, verdict := p.Name, string(p.Verdict)
		for i := range max(len(details), 1) {
			detail := ""
			if i < len(details) {
				detail = details[i]
			}
			fmt.Fprintf(w, "%s\t%s\t%s\n", name, verdict, detail)
			name, verdict = "", ""
		}
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
	for _, kind := range []struct {
		name   string
		values map[string]string
	}{{"annotation", x.Annotations}, {"label", x.Labels}} {
		for _, key := range slices.Sorted(maps.Keys(kind.values)) {
			fmt.Fprintf(w, "%s\t%s\t%s\n", kind.name, key, kind.values[key])
		}
	}
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

// warningList collects the API server's warnings. It is safe for concurrent use.
type warningList struct {
	mu   sync.Mutex
	list []string
}

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext.
func (l *warningList) HandleWarningHeaderWithContext(_ context.Context, code int, _, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if code == 299 && text != "" {
		l.list = append(l.list, text)
	}
}

// take returns the warnings since the last call.
func (l *warningList) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := l.list
	l.list = nil
	return taken
}
