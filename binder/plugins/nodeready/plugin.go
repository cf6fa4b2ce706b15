// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodeready is the PreBind plugin that delays a bind until the node has what the pod needs: the
// CSI drivers of its volumes, the agents that the operator names, node conditions, and extended
// resources. After a limit it rejects the bind, so that the scheduler can choose another node.
//
// The plugin writes nothing. Each check reads what it needs from the cache, and returns what is missing. The cache holds
// compact forms of the objects (caches.go). A bind that has nothing to wait for needs no request.
package nodeready

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/nodecondition"
	"github.com/prebind/prebind/internal/podstate"
	"github.com/prebind/prebind/internal/text"
)

// keyTimeout is the key of the annotation with the limit of the wait.
const keyTimeout = "timeout"

// maxShown is the maximum number of missing things in a message.
const maxShown = 3

// plugin is the parsed Arguments. It is safe for concurrent use.
type plugin struct {
	*Arguments
	agents     []*agent
	conditions []nodecondition.Expectation
	// pass are the namespaces whose pods pass: PassNamespaces and those of the agents.
	pass sets.Set[string]
}

// decide returns the wait of the bind. The readiness of a node can depend on the pods that pass, so a cluster in which
// every node is new can start.
func (p *plugin) decide(ctx context.Context, cache framework.Reader, bc *framework.BindContext) (framework.Verdict, error) {
	if p.pass.Has(bc.Pod.Namespace) || podstate.IsSystem(bc.Pod) {
		return framework.Verdict{}, nil
	}
	limit, err := p.limit(bc)
	if err != nil {
		return framework.Verdict{}, err
	}
	lacks, err := p.missing(ctx, cache, bc)
	if err != nil || len(lacks) == 0 {
		return framework.Verdict{}, err
	}
	var texts []string
	for _, w := range lacks {
		texts = append(texts, w.For)
	}
	// A volume that was chosen or is being provisioned would bind the pod to this node.
	w := framework.Wait{Object: lacks[0].Object, For: strings.Join(text.Shorten(texts, maxShown), ", "), First: true}
	wait, err := bc.AtMost(limit, w, "choose another node")
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

// missing returns what the pod needs and the node lacks, in the order of the checks.
func (p *plugin) missing(ctx context.Context, cache framework.Reader, bc *framework.BindContext) ([]framework.Wait, error) {
	all, err := p.missingVolumes(ctx, cache, bc)
	if err != nil {
		return nil, err
	}
	if p.has(checkAgents) {
		for _, a := range p.agents {
			lacks, err := a.missing(ctx, cache, bc.Node)
			if err != nil {
				return nil, err
			}
			all = append(all, lacks...)
		}
	}
	if p.has(checkConditions) {
		for _, c := range p.conditions {
			if found := c.Mismatch(bc.Node); found != "" {
				all = append(all, lack("Node", bc.Node, "the node condition %s (%s)", c, found))
			}
		}
	}
	if p.has(checkResources) {
		all = append(all, missingResources(bc.Pod, bc.Node)...)
	}
	return all, nil
}

// lack returns a wait for the object of the kind with the name of the node.
func lack(kind string, node *corev1.Node, format string, args ...any) framework.Wait {
	return framework.Wait{Object: framework.Object{Kind: kind, Name: node.Name}, For: fmt.Sprintf(format, args...)}
}

// missingResources compares the pod alone with the node: the scheduler has compared the sum of all
// pods. A resource that DRA serves is not in allocatable.
func missingResources(pod *corev1.Pod, node *corev1.Node) []framework.Wait {
	served := sets.New[corev1.ResourceName]()
	if status := pod.Status.ExtendedResourceClaimStatus; status != nil {
		for _, mapping := range status.RequestMappings {
			served.Insert(corev1.ResourceName(mapping.ResourceName))
		}
	}
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	var all []framework.Wait
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		want, have := requests[name], node.Status.Allocatable[name]
		if isExtended(name) && !served.Has(name) && have.Cmp(want) < 0 {
			all = append(all, lack("Node", node, "extended resource %s on the node (%s requested, %s allocatable)", name, want.String(), have.String()))
		}
	}
	return all
}

// isExtended is IsExtendedResourceName of k8s.io/kubernetes/pkg/apis/core/v1/helper, for names that the
// API server has validated.
func isExtended(name corev1.ResourceName) bool {
	return strings.Contains(string(name), "/") && !strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
}
