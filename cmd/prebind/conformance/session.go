// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	// runLabel is the label of all objects of a run. Its value is the name of the run's namespace.
	runLabel = "conformance.prebind.dev/run"
	// managedBy is the label of the namespaces by which a later run finds them.
	managedBy      = "app.kubernetes.io/managed-by"
	managedByValue = "prebind-conformance"
	// exemptLabel exempts a namespace from Prebind in the shipped webhook configuration.
	exemptLabel = "prebind.dev/exempt"
	// noScheduler is the scheduler of pods that the command binds itself.
	noScheduler = "conformance.prebind.dev"
)

// session is one run on a cluster.
type session struct {
	Options
	client kubernetes.Interface
	// listen makes clients that collect warnings.
	config *rest.Config
	// ns is the namespace of the run.
	ns string
	// nodes are the nodes that checks may pin pods to: one or two.
	nodes []corev1.Node
	// plugins are the enabled PreBind plugins.
	plugins []string
	// progress serializes lines of progress.
	progress *sync.Mutex
	// meter measures the cluster during the checks. Nil means that nothing measures it.
	meter *meter
	// created are the pods of the check, in the order of their creation.
	created []*corev1.Pod
}

// Run makes the checks and removes what it has created. An error means that the run could not start or clean up; the
// report is not nil if at least one check was made. When the context ends, Run breaks off and cleans up.
func Run(ctx context.Context, config *rest.Config, o Options) (*Report, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	config = adjust(config)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("setting up a client: %w", err)
	}
	s := &session{Options: o, client: client, config: config, progress: &sync.Mutex{}}
	selected, err := choose(o.Run)
	if err != nil {
		return nil, err
	}
	if err := s.permitted(ctx, selected); err != nil {
		return nil, err
	}
	if err := s.chooseNodes(ctx); err != nil {
		return nil, err
	}
	s.reportLeftovers(ctx)
	if err := s.createNamespace(ctx); err != nil {
		return nil, err
	}
	report, err := s.checkAll(ctx, selected)
	if ctx.Err() != nil {
		err = errInterrupted
	}
	return report, errors.Join(err, s.finish(ctx))
}

// checkAll makes the checks in the namespace.
func (s *session) checkAll(ctx context.Context, selected []check) (*Report, error) {
	probe, err := s.probe(ctx)
	if err != nil {
		return nil, err
	}
	stop, err := s.measureCluster(ctx, probe)
	if err != nil {
		return nil, err
	}
	defer stop()
	report := &Report{Scheduler: s.Scheduler, Namespace: s.ns, Results: make([]Result, len(selected))}
	var together, alone []int
	for i, c := range selected {
		switch {
		case i == 0:
		case c.alone:
			alone = append(alone, i)
		default:
			together = append(together, i)
		}
	}
	report.Results[0] = s.make(ctx, selected[0])
	var all sync.WaitGroup
	for _, i := range together {
		if report.Results[0].Status != Pass {
			report.Results[i] = resultOf(selected[i], 0, "", &skip{"the check bind did not pass"})
			continue
		}
		all.Go(func() { report.Results[i] = s.make(ctx, selected[i]) })
	}
	all.Wait()
	for _, i := range alone {
		if report.Results[0].Status != Pass {
			report.Results[i] = resultOf(selected[i], 0, "", &skip{"the check bind did not pass"})
			continue
		}
		report.Results[i] = s.make(ctx, selected[i])
	}
	return report, nil
}

// make makes one check. If the check does not pass, make deletes its pods: they would delay the pods of later checks. An
// interrupted run starts no other check.
func (s *session) make(ctx context.Context, c check) Result {
	if ctx.Err() != nil {
		return resultOf(c, 0, "", errInterrupted)
	}
	began := time.Now()
	own := *s
	own.created = nil
	detail, err := "", s.possible(c)
	if err == nil {
		s.say("%s: started", c.name)
		detail, err = c.run(&own, ctx)
	}
	r := resultOf(c, time.Since(began), detail, err)
	if ctx.Err() != nil {
		return r
	}
	if s.meter != nil {
		r.excuse(s.meter.overload(began, time.Now()))
	}
	s.say("%s: %s (%s)", c.name, r.Status, rounded(r.Duration))
	if (r.Status == Fail || r.Status == Errored || r.Status == NoResult) && !s.Keep {
		if err := own.discard(ctx); err != nil && ctx.Err() == nil {
			s.say("%s: the next checks can be affected: %s", c.name, oneLine(err.Error()))
		}
	}
	return r
}

// possible returns a skip if the cluster lacks something that the check needs.
func (s *session) possible(c check) error {
	for _, p := range c.plugins {
		if !slices.Contains(s.plugins, p) {
			return &skip{fmt.Sprintf("the PreBind plugin %s is not enabled; add it to prebindPlugins, or to --prebind-plugins", p)}
		}
	}
	if len(s.nodes) < c.nodes {
		return &skip{fmt.Sprintf("the check needs %d nodes that are Ready and have no taints; name them with --nodes", c.nodes)}
	}
	return nil
}

// say writes a line of progress.
func (s *session) say(format string, args ...any) {
	s.progress.Lock()
	defer s.progress.Unlock()
	fmt.Fprintf(s.Progress, format+"\n", args...)
}

// chooseNodes finds the nodes for the checks.
func (s *session) chooseNodes(ctx context.Context) error {
	list, err := s.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing nodes: %w", err)
	}
	hostnames := map[string]int{}
	for _, n := range list.Items {
		hostnames[n.Labels[corev1.LabelHostname]]++
	}
	byName := map[string]corev1.Node{}
	var usable []corev1.Node
	for _, n := range list.Items {
		byName[n.Name] = n
		if hostnames[n.Labels[corev1.LabelHostname]] == 1 && isUsable(&n) {
			usable = append(usable, n)
		}
	}
	for _, name := range s.Nodes {
		n, ok := byName[name]
		if !ok {
			return fmt.Errorf("--nodes: the cluster has no node %s", name)
		}
		s.nodes = append(s.nodes, n)
	}
	if len(s.Nodes) == 0 {
		s.nodes = usable[:min(len(usable), 2)]
	}
	if len(s.nodes) == 0 {
		return errors.New("no node is Ready, schedulable and without taints; name nodes that your scheduler uses with --nodes")
	}
	return nil
}

// isUsable returns whether a pod without tolerations can be bound to the node.
func isUsable(n *corev1.Node) bool {
	if n.Spec.Unschedulable || n.DeletionTimestamp != nil || n.Labels[corev1.LabelHostname] == "" {
		return false
	}
	for _, t := range n.Spec.Taints {
		if t.Effect != corev1.TaintEffectPreferNoSchedule {
			return false
		}
	}
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// labels returns the labels of all objects of the run.
func (s *session) labels() map[string]string {
	return map[string]string{managedBy: managedByValue, runLabel: s.ns}
}

// createNamespace creates the namespace of the run.
func (s *session) createNamespace(ctx context.Context) error {
	ns, err := s.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: s.NamespacePrefix, Labels: map[string]string{managedBy: managedByValue},
	}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating a namespace: %w", err)
	}
	s.ns = ns.Name
	s.say("namespace %s, scheduler %s, nodes %v", s.ns, s.Scheduler, names(s.nodes))
	return nil
}

func names(nodes []corev1.Node) []string {
	var all []string
	for _, n := range nodes {
		all = append(all, n.Name)
	}
	return all
}
