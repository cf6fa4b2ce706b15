// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodeready is the PreBind plugin that delays a bind until the node has what the pod needs: the
// CSI drivers of its volumes, the agents that the operator names, node conditions, and extended
// resources. After a limit it rejects the bind, so that the scheduler can choose another node.
//
// The plugin writes nothing. It reads facts (read.go), and pure functions return what is missing
// (decide.go). The cache holds compact forms of the objects (caches.go). A bind that has nothing to
// wait for needs no request.
package nodeready

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/binder/framework"
)

// keyTimeout is the key of the annotation with the limit of the wait.
const keyTimeout = "timeout"

// plugin is safe for concurrent use.
type plugin struct {
	rules
	timeout, maxTimeout time.Duration
}

// New returns the plugin, or an error if the arguments are invalid. It starts nothing.
func New(_ framework.Handle, args *Arguments) (framework.Plugin, error) {
	parsed, invalid := args.parse(nil)
	if len(invalid) > 0 {
		return nil, invalid.ToAggregate()
	}
	p := &plugin{rules: parsed, timeout: args.Timeout.Duration, maxTimeout: args.MaxTimeout.Duration}
	return framework.NewPlugin(Name, p.decide), nil
}

// decide returns the wait of the bind.
func (p *plugin) decide(ctx context.Context, cache framework.Reader, bc *framework.BindContext) (framework.Verdict, error) {
	if passes(bc.Pod, p.rules) {
		return framework.Verdict{}, nil
	}
	limit, err := p.limit(bc)
	if err != nil {
		return framework.Verdict{}, err
	}
	f, err := p.read(ctx, cache, bc)
	if err != nil {
		return framework.Verdict{}, err
	}
	lacks := f.missing(p.rules)
	if len(lacks) == 0 {
		return framework.Verdict{}, nil
	}
	wait, err := bc.AtMost(limit, waitingFor(lacks))
	return framework.Verdict{Wait: wait}, err
}

// limit returns the limit of the wait.
func (p *plugin) limit(bc *framework.BindContext) (time.Duration, error) {
	given := bc.Parameter(Name, keyTimeout)
	if given.Value == "" {
		return p.timeout, nil
	}
	limit, err := time.ParseDuration(given.Value)
	if err != nil || limit <= 0 {
		return 0, given.Invalid("must be a positive duration such as 5m, got %.100q", given.Value)
	}
	return min(limit, p.maxTimeout), nil
}

// passes returns whether the pod does not wait. The readiness of a node can depend on such pods, so a
// cluster in which every node is new can start.
func passes(pod *corev1.Pod, r rules) bool {
	if r.pass.Has(pod.Namespace) {
		return true
	}
	// The names of k8s.io/kubernetes/pkg/apis/scheduling.
	switch pod.Spec.PriorityClassName {
	case "system-node-critical", "system-cluster-critical":
		return true
	}
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return true
	}
	controller := metav1.GetControllerOfNoCopy(pod)
	return controller != nil && controller.Kind == "DaemonSet"
}
