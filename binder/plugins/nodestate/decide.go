// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"fmt"
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
type findings []mismatch

func (f *findings) add(m mismatch) { *f = append(*f, m) }

// final returns the first mismatch for which waiting cannot help, or nil.
func (f findings) final() *mismatch {
	if i := slices.IndexFunc(f, func(m mismatch) bool { return m.final != "" }); i >= 0 {
		return &f[i]
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
	for _, m := range f[:min(len(f), maxShown)] {
		parts = append(parts, text(m))
	}
	if more := len(f) - len(parts); more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, separator)
}

// judge returns the failed checks and expectations. It is pure, and does not allocate if
// there are none.
func judge(pod *corev1.Pod, node *corev1.Node, e expectations, on sets.Set[string]) findings {
	if node.DeletionTimestamp != nil {
		return findings{{found: "the node is being deleted", final: "choose another node"}}
	}
	var f findings
	for _, c := range checks {
		if on.Has(c.name) {
			c.run(&f, pod, node)
		}
	}
	f.checkLabels(e.labels, node.Labels, "")
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
		if !tolerates(pod, taint) {
			f.add(mismatch{
				want:  "the taint " + clip(taint.ToString()) + " to be removed",
				found: "the node has it and the pod does not tolerate it",
			})
		}
	}
}

// tolerates allows the operators Gt and Lt of the feature gate
// TaintTolerationComparisonOperators: without the gate, the API server rejects pods that use
// them.
func tolerates(pod *corev1.Pod, taint *corev1.Taint) bool {
	return schedulinghelpers.TolerationsTolerateTaint(klog.Logger{}, pod.Spec.Tolerations, taint, true)
}

func (f *findings) checkAffinity(pod *corev1.Pod, node *corev1.Node) {
	var terms []corev1.NodeSelectorTerm
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		terms = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	} else if len(pod.Spec.NodeSelector) == 0 {
		return
	}
	admits, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	switch {
	case admits:
		return
	case err != nil:
		f.add(mismatch{
			found: "the pod's required node affinity is invalid: " + clip(err.Error()),
			final: "correct the pod", cause: err,
		})
		return
	}
	// The helper does not explain its result.
	before := len(*f)
	selector, _ := labels.SelectorFromSet(pod.Spec.NodeSelector).Requirements()
	f.checkLabels(selector, node.Labels, " as required by the pod's nodeSelector")
	if len(*f) == before && len(terms) == 1 && len(terms[0].MatchFields) == 0 {
		f.checkLabels(requirementsOf(terms[0]), node.Labels, " as required by the pod's node affinity")
	}
	if len(*f) == before {
		f.add(mismatch{want: "the pod's required node affinity to admit the node", found: fmt.Sprintf("none of its %d terms matches", len(terms))})
	}
}

// requirementsOf converts the term's expressions to those of a label selector.
func requirementsOf(term corev1.NodeSelectorTerm) labels.Requirements {
	operators := map[corev1.NodeSelectorOperator]selection.Operator{
		corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
		corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
		corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
	}
	var all labels.Requirements
	for _, expression := range term.MatchExpressions {
		if r, err := labels.NewRequirement(expression.Key, operators[expression.Operator], expression.Values); err == nil {
			all = append(all, *r)
		}
	}
	return all
}

// checkLabels checks the requirements. The mismatches end with their origin.
func (f *findings) checkLabels(requirements labels.Requirements, of labels.Set, origin string) {
	for _, r := range requirements {
		if r.Matches(of) {
			continue
		}
		m := mismatch{want: clip("the label "+r.Key()+" "+demand(r)) + origin, found: "it is not set"}
		if value, has := of[r.Key()]; has {
			m.found = fmt.Sprintf("it is %q", clip(value))
		}
		f.add(m)
	}
}

// demand returns the requirement as words that follow the label's key.
func demand(r labels.Requirement) string {
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

func (f *findings) checkCondition(expected condition, node *corev1.Node) {
	now := conditionOf(node, expected.kind)
	if is := now != nil && now.Status == expected.status; is != expected.not {
		return
	}
	not := ""
	if expected.not {
		not = "not "
	}
	f.add(mismatch{want: fmt.Sprintf("the condition %s %sto be %s", clip(string(expected.kind)), not, expected.status), found: describe(now)})
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
		return "it is " + clip(string(c.Status))
	default:
		return "it is " + clip(string(c.Status)) + " (" + clip(c.Reason) + ")"
	}
}
