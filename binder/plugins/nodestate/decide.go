// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/sets"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// checks are the optional checks in order. The plugin always checks that the node is not being deleted. Each check is that
// of kube-scheduler's filter: NodeUnschedulable, TaintToleration for the effects NoSchedule and NoExecute, and NodeAffinity.
var checks = []struct {
	name string
	run  func(f *findings, pod *corev1.Pod, node *corev1.Node)
}{
	{"ready", (*findings).checkReady},
	{"schedulable", (*findings).checkSchedulable},
	{"taints", (*findings).checkTaints},
	{"affinity", (*findings).checkAffinity},
}

// CheckNames returns the names of all checks. The caller owns the slice.
func CheckNames() []string {
	var names []string
	for _, c := range checks {
		names = append(names, c.name)
	}
	return names
}

// mismatch is a failed check or expectation.
type mismatch struct {
	// want completes "expected" and "waiting for". If it is empty, found is the message.
	want  string
	found string
	// final is the advice if waiting cannot help.
	final string
	cause error
}

// findings are the mismatches of a node.
type findings struct {
	list []mismatch
	// more counts the mismatches beyond maxShown.
	more int
}

var leaving = mismatch{found: "the node is being deleted", final: "choose another node"}

func (f *findings) add(m mismatch) { f.list = append(f.list, m) }

// full returns whether the list is full. If so, it counts the next mismatch.
func (f *findings) full() bool {
	if len(f.list) < maxShown {
		return false
	}
	f.more++
	return true
}

func (f findings) none() bool { return len(f.list) == 0 }

// final returns the first mismatch for which waiting cannot help, or nil.
func (f findings) final() *mismatch {
	for i := range f.list {
		if f.list[i].final != "" {
			return &f.list[i]
		}
	}
	return nil
}

// String completes a message of a rejection.
func (f findings) String() string {
	return f.join("; ", func(m mismatch) string {
		if m.want == "" {
			return m.found
		}
		return "expected " + m.want + ", but " + m.found
	})
}

// awaited completes "waiting for".
func (f findings) awaited() string {
	return f.join(", ", func(m mismatch) string { return m.want + " (" + m.found + ")" })
}

func (f findings) join(separator string, text func(mismatch) string) string {
	var parts []string
	for _, m := range f.list {
		parts = append(parts, text(m))
	}
	if f.more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", f.more))
	}
	return strings.Join(parts, separator)
}

// judge returns the failed checks and expectations. It is pure, and does not allocate if
// there are none.
func judge(pod *corev1.Pod, node *corev1.Node, e expectations, on sets.Set[string]) findings {
	if node.DeletionTimestamp != nil {
		return findings{list: []mismatch{leaving}}
	}
	var f findings
	for _, c := range checks {
		if on.Has(c.name) {
			c.run(&f, pod, node)
		}
	}
	for i := range e.labels {
		f.checkLabel(&e.labels[i], node.Labels, "")
	}
	for _, expected := range e.conditions {
		f.checkCondition(expected, node)
	}
	return f
}

// checkReady passes a pod that kube-scheduler would pass. For a node that is not ready, the
// node lifecycle controller adds the taint not-ready, or unreachable if the status is
// Unknown, with both effects. It treats a node without the condition as Unknown.
func (f *findings) checkReady(pod *corev1.Pod, node *corev1.Node) {
	ready := conditionOf(node, corev1.NodeReady)
	taint := corev1.TaintNodeUnreachable
	switch {
	case ready == nil:
	case ready.Status == corev1.ConditionTrue:
		return
	case ready.Status == corev1.ConditionFalse:
		taint = corev1.TaintNodeNotReady
	}
	if tolerates(pod, &corev1.Taint{Key: taint, Effect: corev1.TaintEffectNoSchedule}) &&
		tolerates(pod, &corev1.Taint{Key: taint, Effect: corev1.TaintEffectNoExecute}) {
		return
	}
	f.add(mismatch{want: "the condition Ready to be True", found: describe(ready)})
}

func (f *findings) checkSchedulable(pod *corev1.Pod, node *corev1.Node) {
	if !node.Spec.Unschedulable || tolerates(pod, &corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}) {
		return
	}
	f.add(mismatch{want: "the node to be schedulable", found: "it is cordoned"})
}

func (f *findings) checkTaints(pod *corev1.Pod, node *corev1.Node) {
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		if taint.Effect != corev1.TaintEffectNoSchedule && taint.Effect != corev1.TaintEffectNoExecute {
			continue
		}
		if tolerates(pod, taint) || f.full() {
			continue
		}
		f.add(mismatch{
			want:  "the taint " + clip(taint.ToString(), maxEcho) + " to be removed",
			found: "the node has it and the pod does not tolerate it",
		})
	}
}

// tolerates allows the operators Gt and Lt of the feature gate
// TaintTolerationComparisonOperators: without the gate, the API server rejects pods that use
// them.
func tolerates(pod *corev1.Pod, taint *corev1.Taint) bool {
	return schedulinghelpers.TolerationsTolerateTaint(klog.Logger{}, pod.Spec.Tolerations, taint, true)
}

func (f *findings) checkAffinity(pod *corev1.Pod, node *corev1.Node) {
	terms, required := requiredTerms(pod)
	if !required && len(pod.Spec.NodeSelector) == 0 {
		return
	}
	admits, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	switch {
	case admits:
		return
	case err != nil:
		f.add(mismatch{
			found: "the pod's required node affinity is invalid: " + clip(err.Error(), maxEcho),
			final: "correct the pod", cause: err,
		})
		return
	}
	// The helper does not explain its result.
	before := len(f.list) + f.more
	for _, key := range slices.Sorted(maps.Keys(pod.Spec.NodeSelector)) {
		want := pod.Spec.NodeSelector[key]
		if value, has := node.Labels[key]; (!has || value != want) && !f.full() {
			f.add(labelMismatch(key, fmt.Sprintf("to be %q", want), " as required by the pod's nodeSelector", node.Labels))
		}
	}
	if len(f.list)+f.more > before {
		return
	}
	if len(terms) == 1 && len(terms[0].MatchFields) == 0 {
		for _, r := range requirementsOf(terms[0]) {
			f.checkLabel(&r, node.Labels, " as required by the pod's node affinity")
		}
	}
	if len(f.list)+f.more == before && !f.full() {
		f.add(mismatch{want: "the pod's required node affinity to admit the node", found: fmt.Sprintf("none of its %d terms matches", len(terms))})
	}
}

func requiredTerms(pod *corev1.Pod) ([]corev1.NodeSelectorTerm, bool) {
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil, false
	}
	return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms, true
}

// requirementsOf converts the term's expressions to those of a label selector.
func requirementsOf(term corev1.NodeSelectorTerm) []labels.Requirement {
	operators := map[corev1.NodeSelectorOperator]selection.Operator{
		corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
		corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
		corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
	}
	var all []labels.Requirement
	for _, expression := range term.MatchExpressions {
		if r, err := labels.NewRequirement(expression.Key, operators[expression.Operator], expression.Values); err == nil {
			all = append(all, *r)
		}
	}
	return all
}

// checkLabel checks one requirement. The mismatch ends with its origin.
func (f *findings) checkLabel(r *labels.Requirement, of labels.Set, origin string) {
	if r.Matches(of) || f.full() {
		return
	}
	f.add(labelMismatch(r.Key(), demand(r), origin, of))
}

// demand returns the requirement as words that follow the label's key.
func demand(r *labels.Requirement) string {
	var values []string
	for _, value := range r.ValuesUnsorted() {
		values = append(values, fmt.Sprintf("%q", value))
	}
	list := strings.Join(values, ", ")
	switch r.Operator() {
	case selection.DoesNotExist:
		return "not to be set"
	case selection.Exists:
		return "to be set"
	case selection.GreaterThan:
		return "to be a number above " + list
	case selection.LessThan:
		return "to be a number below " + list
	case selection.NotIn, selection.NotEquals:
		if len(values) > 1 {
			return "to be none of " + list
		}
		return "not to be " + list
	default:
		if len(values) > 1 {
			return "to be one of " + list
		}
		return "to be " + list
	}
}

func labelMismatch(key, demand, origin string, of map[string]string) mismatch {
	m := mismatch{want: clip("the label "+key+" "+demand, maxEcho) + origin, found: "it is not set"}
	if value, has := of[key]; has {
		m.found = fmt.Sprintf("it is %q", clip(value, maxEcho))
	}
	return m
}

func (f *findings) checkCondition(expected condition, node *corev1.Node) {
	now := conditionOf(node, expected.kind)
	if is := now != nil && now.Status == expected.status; is != expected.not || f.full() {
		return
	}
	not := ""
	if expected.not {
		not = "not "
	}
	f.add(mismatch{want: fmt.Sprintf("the condition %s %sto be %s", clip(string(expected.kind), maxEcho), not, expected.status), found: describe(now)})
}

// conditionOf returns the condition, or nil if the node does not have it.
func conditionOf(node *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == kind {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

func describe(c *corev1.NodeCondition) string {
	switch {
	case c == nil:
		return "it is not set"
	case c.Reason == "":
		return "it is " + clip(string(c.Status), maxEcho)
	default:
		return "it is " + clip(string(c.Status), maxEcho) + " (" + clip(c.Reason, maxEcho) + ")"
	}
}
