// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
	// ns is the namespace of the run. All objects of the run are in it, or belong to it.
	ns *corev1.Namespace
	// nodes are the nodes that checks may pin pods to: one or two.
	nodes []corev1.Node
	// probe is a pod that is never bound. The command asks Prebind about it with dry runs.
	probe *corev1.Pod
	// plugins are the enabled PreBind plugins.
	plugins []string
	// load measures the cluster during the checks.
	load meter
	// progress serializes lines of progress.
	progress sync.Mutex
}

// errInterrupted is the error of a run whose context has ended.
var errInterrupted = errors.New("interrupted")

// Run makes the checks with valid options, and removes all that it has created. An error means that the run could not start or clean up; the report is not
// nil if at least one check was made. When ctx ends, Run breaks off and cleans up.
func Run(ctx context.Context, config *rest.Config, o Options) (*Report, error) {
	s := &session{Options: o, config: adjust(config)}
	var err error
	if s.client, err = kubernetes.NewForConfig(s.config); err != nil {
		return nil, fmt.Errorf("setting up a client: %w", err)
	}
	if s.dynamic, err = dynamic.NewForConfig(s.config); err != nil {
		return nil, fmt.Errorf("setting up a client: %w", err)
	}
	selected, err := choose(o.Run)
	if err != nil {
		return nil, err
	}
	if err := s.chooseNodes(ctx); err != nil {
		return nil, err
	}
	if runs, err := earlier(ctx, s.client, s.NamespacePrefix); err == nil && len(runs) > 0 {
		s.say("found namespaces of earlier runs, or of runs in progress: %s; remove them with 'kubectl prebind conformance --cleanup'", strings.Join(runs, ", "))
	}
	s.ns, err = s.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: s.NamespacePrefix, Labels: map[string]string{managedBy: managedByValue},
	}}, metav1.CreateOptions{})
	if err != nil {
		return nil, forbidden(fmt.Errorf("creating a namespace: %w", err))
	}
	s.say("namespace %s, scheduler %s", s.ns.Name, s.Scheduler)
	report, err := s.checkAll(ctx, selected)
	if ctx.Err() != nil {
		err = errInterrupted
	}
	return report, errors.Join(err, s.finish(ctx))
}

// checkAll makes the first check, then most others at the same time, and the rest one after the other.
func (s *session) checkAll(ctx context.Context, selected []check) (*Report, error) {
	if err := s.ask(ctx); err != nil {
		return nil, err
	}
	metering, stop := context.WithCancel(ctx)
	defer stop()
	go s.load.run(metering, func(ctx context.Context) error {
		return dryrun.Post(ctx, s.client, dryrun.Binding(s.probe, s.nodes[0].Name, nil), dryrun.DryRun)
	})
	report := &Report{Scheduler: s.Scheduler, Results: make([]Result, len(selected))}
	report.Results[0] = s.make(ctx, selected[0])
	run := func(i int) {
		if report.Results[0].Status == Pass {
			report.Results[i] = s.make(ctx, selected[i])
		} else {
			report.Results[i] = resultOf(selected[i], 0, "", skip("the check %s did not pass", selected[0].name), "")
		}
	}
	var all sync.WaitGroup
	for i, c := range selected[1:] {
		if !c.alone {
			all.Go(func() { run(i + 1) })
		}
	}
	all.Wait()
	for i, c := range selected[1:] {
		if c.alone {
			run(i + 1)
		}
	}
	return report, nil
}

// make makes one check. If the check does not pass, make deletes its pods: they would delay the pods of later checks. An
// interrupted run starts no other check.
func (s *session) make(ctx context.Context, c check) Result {
	if ctx.Err() != nil {
		return resultOf(c, 0, "", errInterrupted, "")
	}
	began, overload := time.Now(), s.load.watch()
	t := &trial{session: s, err: s.possible(c)}
	detail := ""
	if t.err == nil {
		s.say("%s: started", c.name)
		t.do(func() { detail = c.run(ctx, t) })
	}
	r := resultOf(c, time.Since(began), detail, t.err, overload())
	if ctx.Err() != nil {
		return r
	}
	s.say("%s: %s (%s)", c.name, r.Status, seconds(r.Duration))
	if r.Status != Pass && r.Status != Skipped {
		last := &trial{session: s}
		if last.do(func() { last.deletes(ctx, t.created...) }); last.err != nil && ctx.Err() == nil {
			s.say("%s: the next checks can be affected: %s", c.name, oneLine(last.err.Error()))
		}
	}
	return r
}

// possible returns an error if the cluster lacks something that the check needs.
func (s *session) possible(c check) error {
	for _, p := range c.plugins {
		if !slices.Contains(s.plugins, p) {
			return skip("the PreBind plugin %s is not enabled; add it to prebindPlugins, or to --prebind-plugins", p)
		}
	}
	if len(s.nodes) < c.nodes {
		return skip("the check needs %d nodes that are Ready and have no taints; name them with --nodes", c.nodes)
	}
	return nil
}

// say writes a line of progress.
func (s *session) say(format string, args ...any) {
	s.progress.Lock()
	defer s.progress.Unlock()
	fmt.Fprintf(s.Progress, format+"\n", args...)
}

// ask finds out what Prebind does in the namespace.
func (s *session) ask(ctx context.Context) (err error) {
	if s.probe, err = s.create(ctx, s.pod("probe", unscheduled)); err != nil {
		return err
	}
	node := s.nodes[0].Name
	x, err := s.explain(ctx, node, nil)
	switch {
	case err != nil:
		return err
	case x.Mode != binder.ModeEnforce:
		return fmt.Errorf("the mode of Prebind in new namespaces is %s; the checks need Enforce, for example with a rule for the namespaces %s*", x.Mode, s.NamespacePrefix)
	case x.Refusal != nil:
		return fmt.Errorf("a plain pod is refused on node %s: %s: %s; choose other nodes with --nodes", node, x.Refusal.Plugin, x.Refusal.Message)
	}
	for _, p := range x.Plugins {
		s.plugins = append(s.plugins, p.Name)
	}
	s.say("Prebind is active; plugins: %s", strings.Join(s.plugins, ", "))
	return nil
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
	for _, name := range s.Nodes {
		i := slices.IndexFunc(list.Items, func(n corev1.Node) bool { return n.Name == name })
		if i < 0 {
			return fmt.Errorf("--nodes: the cluster has no node %s", name)
		}
		s.nodes = append(s.nodes, list.Items[i])
	}
	hostnames := map[string]int{}
	for _, n := range list.Items {
		hostnames[n.Labels[corev1.LabelHostname]]++
	}
	for _, n := range list.Items {
		if len(s.nodes) < 2 && hostnames[n.Labels[corev1.LabelHostname]] == 1 && isUsable(&n) {
			s.nodes = append(s.nodes, n)
		}
	}
	if len(s.nodes) == 0 {
		return errors.New("no node is Ready, schedulable and without taints; name nodes that your scheduler uses with --nodes")
	}
	return nil
}

// isUsable returns whether a pod without tolerations can be bound to the node.
func isUsable(n *corev1.Node) bool {
	excludes := func(t corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }
	if n.Spec.Unschedulable || n.DeletionTimestamp != nil || n.Labels[corev1.LabelHostname] == "" || slices.ContainsFunc(n.Spec.Taints, excludes) {
		return false
	}
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// forbidden adds the remedy to an error of the API server because of a missing permission.
func forbidden(err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%w; if your user lacks the permission, grant the ClusterRole of docs/conformance.md", err)
	}
	return err
}
