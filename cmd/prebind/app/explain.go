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
	exitWait   = 1
	exitRefuse = 2
	// exitUnknown is for what could not be found out.
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
		Short: "Say what would become of a pod's bind to a node",
		Long: `Say what would become of a pod's bind to a node.

It posts a dry-run Binding to the API server, as a scheduler would, so that it tells
what would happen, and changes nothing: the annotations and labels that the pod would
get, what each PreBind plugin says, and what it would wait for. You need the permission
to create pods/binding.

The exit code is 0 where the pod would be bound, 1 where it would wait, 2 where it
would be refused, and 3 where that could not be found out, such as when the API server
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
	fs.StringVar(&o.node, "node", "", "Node that the pod would be bound to.")
	fs.StringToStringVar(&o.annotations, "annotation", nil, "Annotations that the scheduler would put on the Binding, as key=value.")
	o.output.addFlag(fs)
	o.user.addFlags(fs)
	return cmd
}

// report is what explain tells. Its JSON is stable.
type report struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Node      string `json:"node"`
	// Verdict is what would become of the bind, by whoever decides it.
	Verdict binder.Verdict `json:"verdict"`
	// Reason is why it is not bound, in plain words.
	Reason string `json:"reason,omitempty"`
	// Prebind is what Prebind says of it; it is missing where Prebind has no part in
	// the bind.
	Prebind *binder.Explanation `json:"prebind,omitempty"`
	// Warnings are those of others.
	Warnings []string `json:"warnings,omitempty"`
}

// run explains one bind.
func (o *explainOptions) run(ctx context.Context, out io.Writer, name string) error {
	if o.node == "" {
		return errors.New("--node: say which node the pod would be bound to")
	}
	if err := o.output.write(io.Discard, nil, func(io.Writer) error { return nil }); err != nil {
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
		return fmt.Errorf("the way to the API server: %w", err)
	}
	pod, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the pod: %w", err)
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

// binding is what a scheduler would post, with the wish to have it explained.
func (o *explainOptions) binding(pod *corev1.Pod) *corev1.Binding {
	annotations := maps.Clone(o.annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[webhook.ExplainAnnotation(framework.Domain)] = "true"
	return &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Annotations: annotations},
		Target:     corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: o.node},
	}
}

// post posts the Binding as a dry run, once: the client would repeat it by itself
// where it has to wait.
func post(ctx context.Context, client kubernetes.Interface, b *corev1.Binding) error {
	return client.CoreV1().RESTClient().Post().
		Namespace(b.Namespace).Resource("pods").Name(b.Name).SubResource("binding").
		VersionedParams(&metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}, scheme.ParameterCodec).
		MaxRetries(0).Body(b).Do(ctx).Error()
}

// explain makes the report of the API server's answer and its warnings.
func (o *explainOptions) explain(pod *corev1.Pod, answer error, warnings []string) (*report, error) {
	r := &report{Namespace: pod.Namespace, Pod: pod.Name, Node: o.node, Verdict: binder.VerdictBind}
	for _, w := range warnings {
		x, err := webhook.DecodeExplanation(w)
		if err != nil {
			return nil, fmt.Errorf("%w: this program and the Prebind in the cluster may be of different versions", err)
		}
		if x == nil {
			r.Warnings = append(r.Warnings, w)
			continue
		}
		r.Prebind = x
	}
	return r, r.judge(answer)
}

// judge finds the verdict: that of the API server, and of Prebind where it would let
// the bind go ahead as long as it is a dry run only.
func (r *report) judge(answer error) error {
	var status apierrors.APIStatus
	switch {
	case answer == nil:
	case !errors.As(answer, &status):
		return fmt.Errorf("posting a dry-run Binding: %w", answer)
	case r.Prebind == nil && status.Status().Code >= http.StatusInternalServerError:
		return undecided(answer)
	case apierrors.IsForbidden(answer) && r.Prebind == nil && strings.Contains(answer.Error(), "cannot create resource"):
		return fmt.Errorf("explaining takes the permission to create pods/binding: %w", answer)
	case apierrors.IsTooManyRequests(answer):
		r.Verdict, r.Reason = binder.VerdictWait, answer.Error()
	default:
		r.Verdict, r.Reason = binder.VerdictRefuse, answer.Error()
	}
	if x := r.Prebind; answer == nil && x != nil && x.Mode != binder.ModeAudit {
		r.foresee(x)
	}
	return nil
}

// undecided is the error of an API server that could not decide on the bind. A webhook
// that it cannot call is the usual cause.
func undecided(answer error) error {
	_, after, failing := strings.Cut(answer.Error(), "failed calling webhook \"")
	name, _, _ := strings.Cut(after, "\"")
	switch {
	case !failing:
		return fmt.Errorf("the API server cannot decide on the bind: %w", answer)
	case name == webhookName:
		return fmt.Errorf("the API server cannot reach Prebind, so it binds no pod outside the exempt namespaces; run 'prebind status', check the Service and the pods in Prebind's namespace, the network between the API server and port 9443, and the caBundle of the webhook configuration: %w", answer)
	default:
		return fmt.Errorf("the API server cannot call the webhook %q, which is not Prebind: %w", name, answer)
	}
}

// foresee takes over what the bind would come to that is only a dry run.
func (r *report) foresee(x *binder.Explanation) {
	r.Verdict = x.Verdict
	if x.Refusal != nil {
		r.Reason = (&framework.Error{Plugin: x.Refusal.Plugin, Message: x.Refusal.Message, Advice: x.Refusal.Advice}).Error()
	}
}

// text writes the report for people.
func (r *report) text(out io.Writer) error {
	becomes := map[binder.Verdict]string{binder.VerdictBind: "would be bound", binder.VerdictWait: "would have to wait", binder.VerdictRefuse: "would be refused"}
	fmt.Fprintf(out, "Pod %s/%s to Node %s: it %s\n", r.Namespace, r.Pod, r.Node, becomes[r.Verdict])
	if r.Reason != "" {
		fmt.Fprintf(out, "  %s\n", r.Reason)
	}
	x := r.Prebind
	if x == nil {
		fmt.Fprintln(out, "\nPrebind has no part in this bind: it is not installed, the namespace is exempt or its mode is Off, nothing\nis switched on, the API server would give its own answer, or it cannot reach Prebind and failurePolicy is Ignore.")
		return r.textWarnings(out, r.Warnings)
	}
	if x.Mode == binder.ModeAudit {
		fmt.Fprintf(out, "\nPrebind is in audit mode here: it would only report what follows (verdict: %s), and add nothing.\n", x.Verdict)
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
		fmt.Fprintln(out, "\nSome of it is left out: it is longer than the API server passes on.")
	}
	return r.textWarnings(out, append(slices.Clone(r.Warnings), notIntents(x.Warnings)...))
}

// textPlugins writes a line for each plugin, and one for each thing it would do.
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
				details = append(details, "waits for "+what)
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
	}
	return w.Flush()
}

// textAdded writes what the pod would get.
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

func (r *report) textWarnings(out io.Writer, warnings []string) error {
	for i, w := range warnings {
		if i == 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprintf(out, "Warning: %s\n", w)
	}
	return nil
}

// notIntents leaves out what the plugins' lines tell already.
func notIntents(warnings []string) []string {
	return slices.DeleteFunc(slices.Clone(warnings), func(w string) bool { return strings.HasPrefix(w, "dry run: ") })
}

// warningList keeps the API server's warnings. It is safe for concurrent use.
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
