// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	nodeutil "k8s.io/component-helpers/node/util"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

const (
	domain  = "prebind.dev"
	maxWait = time.Minute
)

// withAll has all checks.
var withAll = &Plugin{checks: all, maxWait: maxWait}

// all enables all checks.
var all = sets.New(CheckNames()...)

// The node passes all checks for the pod.
func thePod(options ...gen.PodOption) *corev1.Pod {
	return gen.Pod("web", append([]gen.PodOption{gen.UID("pod-1")}, options...)...)
}

func theNode(changes ...func(*corev1.Node)) *corev1.Node {
	node := gen.Node("node-a", gen.UID("node-1"), gen.Ready(10))
	for _, change := range changes {
		change(node)
	}
	return node
}

func terminating(node *corev1.Node) { gen.Terminating()(&node.ObjectMeta) }

func label(key, value string) func(*corev1.Node) {
	return func(node *corev1.Node) { gen.Label(key, value)(&node.ObjectMeta) }
}

func cordoned(node *corev1.Node) { node.Spec.Unschedulable = true }

func taint(key, value string, effect corev1.TaintEffect) func(*corev1.Node) {
	return func(node *corev1.Node) {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Value: value, Effect: effect})
	}
}

// reports sets a condition.
func reports(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason string) func(*corev1.Node) {
	return func(node *corev1.Node) {
		if _, c := nodeutil.GetNodeCondition(&node.Status, kind); c != nil {
			c.Status, c.Reason = status, reason
			return
		}
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: kind, Status: status, Reason: reason})
	}
}

func reportsNothing(node *corev1.Node) { node.Status.Conditions = nil }

// tolerating returns a pod with these tolerations.
func tolerating(tolerations ...corev1.Toleration) *corev1.Pod {
	pod := thePod()
	pod.Spec.Tolerations = tolerations
	return pod
}

// wanting returns a pod with a required node affinity.
func wanting(terms ...corev1.NodeSelectorTerm) *corev1.Pod {
	pod := thePod()
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
	}}
	return pod
}

// term returns a term with these expressions.
func term(expressions ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchExpressions: expressions}
}

func expression(key string, operator corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: operator, Values: values}
}

// annotation sets an annotation of the plugin.
func annotation(key, value string) gen.Meta { return gen.Annotation(Name+"."+domain+"/"+key, value) }

func contextFor(pod *corev1.Pod, node *corev1.Node, options ...gen.BindingOption) *framework.BindContext {
	return &framework.BindContext{Pod: pod, Node: node, Binding: gen.Binding(pod, node.Name, options...), Now: began, Since: began}
}

// began is the time of the first call.
var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
