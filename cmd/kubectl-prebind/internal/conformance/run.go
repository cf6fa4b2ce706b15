// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"log"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/cmd/kubectl-prebind/internal/dryrun"
)

// session is one run on a cluster.
type session struct {
	Options
	client  kubernetes.Interface
	dynamic dynamic.Interface
	config  *rest.Config
	// log writes the progress.
	log *log.Logger
	// ns is the namespace of the run. All objects of the run are in it, or belong to it.
	ns *corev1.Namespace
	// nodes are the nodes that checks may pin pods to, at least two.
	nodes []corev1.Node
	// probe is a pod that is never bound. The command asks Prebind about it with dry runs.
	probe *corev1.Pod
	// plugins are the enabled PreBind plugins.
	plugins []binder.PluginExplanation
}

// errInterrupted is the error of a run whose context has ended.
var errInterrupted = errors.New("interrupted")

// Run makes the checks with valid options, and removes all that it has created. An error means that the run could not start or clean up; the report is not
// nil if at least one check was made. When ctx ends, Run breaks off and cleans up.
func Run(ctx context.Context, config *rest.Config, o Options) (*Report, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst, config.WarningHandler = 100, 200, rest.NoWarnings{}
	s := &session{Options: o, config: config, log: log.New(o.Progress, "", 0)}
	var err error
	if s.client, err = kubernetes.NewForConfig(s.config); err != nil {
		return nil, fmt.Errorf("setting up a client: %w", err)
	}
	if s.dynamic, err = dynamic.NewForConfig(s.config); err != nil {
		return nil, fmt.Errorf("setting up a client: %w", err)
	}
	if err := s.chooseNodes(ctx); err != nil {
		return nil, err
	}
	s.ns, err = s.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: s.NamespacePrefix, Labels: map[string]string{managedBy: managedByValue},
	}}, metav1.CreateOptions{})
	if err != nil {
		return nil, forbidden(fmt.Errorf("creating a namespace: %w", err))
	}
	s.log.Printf("namespace %s, scheduler %s", s.ns.Name, s.Scheduler)
	report, err := s.checkAll(ctx, choose(o.Run))
	if ctx.Err() != nil {
		err = errInterrupted
	}
	return report, errors.Join(err, s.finish(ctx))
}

// checkAll makes the first check, then most others at the same time, and the rest one after the other.
func (s *session) checkAll(ctx context.Context, selected []check) (*Report, error) {
	asking := &trial{session: s}
	if asking.do(func() { asking.asks(ctx) }); asking.Status != "" {
		return nil, errors.New(asking.Detail)
	}
	report := &Report{Scheduler: s.Scheduler, Results: make([]Result, len(selected))}
	for i, c := range selected {
		report.Results[i] = Result{Check: c.name, Status: Skipped, Detail: fmt.Sprintf("the check %s did not pass", selected[0].name)}
	}
	report.Results[0] = s.make(ctx, selected[0])
	if report.Results[0].Status != Pass {
		return report, nil
	}
	var all sync.WaitGroup
	for i, c := range selected[1:] {
		if c.alone {
			all.Wait()
		}
		all.Go(func() { report.Results[i+1] = s.make(ctx, c) })
	}
	all.Wait()
	return report, nil
}

// make makes one check, and deletes its pods: they would delay the pods of later checks. If the check did not pass on an overloaded cluster, it
// has no result. An interrupted run starts no other check, and its results have no meaning.
func (s *session) make(ctx context.Context, c check) Result {
	if ctx.Err() != nil {
		return Result{}
	}
	s.log.Printf("%s: started", c.name)
	t := &trial{session: s, began: time.Now()}
	t.do(func() {
		for _, p := range c.plugins {
			if !slices.ContainsFunc(s.plugins, func(enabled binder.PluginExplanation) bool { return enabled.Name == p }) {
				t.skips("the PreBind plugin %s is not enabled; add it to prebindPlugins, or to --prebind-plugins", p)
			}
		}
		t.ends(Pass, "", "%s", c.run(ctx, t))
	})
	r := t.Result
	r.Check, r.Section, r.Duration = c.name, c.section, time.Since(t.began)
	if slow := t.overload(); slow != "" && (r.Status == Fail || r.Status == Errored) {
		r.Status, r.Detail, r.Advice = NoResult, slow+"; "+string(r.Status)+": "+r.Detail, ""
	}
	if ctx.Err() != nil {
		return r
	}
	s.log.Printf("%s: %s (%s)", c.name, r.Status, seconds(r.Duration))
	t.do(func() { t.deletes(ctx, t.created...) })
	return r
}

// asks finds out what Prebind does in the namespace.
func (t *trial) asks(ctx context.Context) {
	t.probe = t.creates(ctx, "probe", unscheduled)
	x, err := t.explain(ctx, t.nodes[0].Name, nil)
	t.must(err)
	if x.Mode != binder.ModeEnforce {
		t.must(fmt.Errorf("the mode of Prebind in new namespaces is %s; the checks need Enforce, for example with a rule for the namespaces %s*", x.Mode, t.NamespacePrefix))
	}
	t.plugins = x.Plugins
}

// explain returns what Prebind would do with a bind of the probe to the node.
func (s *session) explain(ctx context.Context, node string, annotations map[string]string) (*binder.Explanation, error) {
	answer, err := dryrun.Explain(ctx, s.config, s.probe, node, annotations)
	switch {
	case err != nil:
		return nil, err
	case answer.Prebind != nil:
		return answer.Prebind, nil
	case answer.Err != nil:
		return nil, fmt.Errorf("posting a dry-run Binding: %w; run 'kubectl prebind status'", answer.Err)
	default:
		return nil, errors.New("binds in new namespaces do not pass Prebind: it is not installed, its mode is Off, or failurePolicy is Ignore and no replica answers; run 'kubectl prebind status'")
	}
}

// chooseNodes finds the nodes for the checks.
func (s *session) chooseNodes(ctx context.Context) error {
	list, err := s.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return forbidden(fmt.Errorf("listing nodes: %w", err))
	}
	for _, n := range list.Items {
		if len(s.Nodes) == 0 && len(s.nodes) < 2 && isUsable(&n) || slices.Contains(s.Nodes, n.Name) {
			s.nodes = append(s.nodes, n)
		}
	}
	if len(s.nodes) < max(len(s.Nodes), 2) {
		return errors.New("the checks need two nodes that are Ready, schedulable and without taints; name existing nodes that your scheduler uses with --nodes")
	}
	return nil
}

// isUsable returns whether a pod without tolerations can be bound to the node. Kubernetes taints nodes that are not Ready or not schedulable.
func isUsable(n *corev1.Node) bool {
	excludes := func(t corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }
	return n.DeletionTimestamp == nil && n.Labels[corev1.LabelHostname] != "" && !slices.ContainsFunc(n.Spec.Taints, excludes)
}

// forbidden adds the remedy to an error of the API server because of a missing permission.
func forbidden(err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%w; if your user lacks the permission, grant the ClusterRole of docs/conformance.md", err)
	}
	return err
}
