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

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/prebind/prebind/binder/framework"
)

// keyTimeout is the key of the annotation with the limit of the wait.
const keyTimeout = "timeout"

// plugin is the parsed Arguments. It is safe for concurrent use.
type plugin struct {
	*Arguments
	agents     []*agent
	conditions []condition
	// pass are the namespaces whose pods pass: PassNamespaces and those of the agents.
	pass sets.Set[string]
}

// decide returns the wait of the bind. The readiness of a node can depend on the pods that pass, so a cluster in which
// every node is new can start.
func (p *plugin) decide(ctx context.Context, cache framework.Reader, bc *framework.BindContext) (framework.Verdict, error) {
	if p.pass.Has(bc.Pod.Namespace) || framework.IsSystemPod(bc.Pod) {
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
	lacks := p.missing(f)
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
		return p.Timeout.Duration, nil
	}
	limit, err := time.ParseDuration(given.Value)
	if err != nil || limit <= 0 {
		return 0, given.Invalid("must be a positive duration such as 5m, got %.100q", given.Value)
	}
	return min(limit, p.MaxTimeout.Duration), nil
}
