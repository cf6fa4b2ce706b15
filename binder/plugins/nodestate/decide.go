// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/sets"
	nodeutil "k8s.io/component-helpers/node/util"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/nodecondition"
	"github.com/prebind/prebind/internal/text"
)

// The optional checks. The plugin always checks that the node is not being deleted. Each check is that of kube-scheduler's
// filter: NodeUnschedulable, TaintToleration for the effects NoSchedule and NoExecute, and NodeAffinity.
const (
	checkReady       = "ready"
	checkSchedulable = "schedulable"
	checkTaints      = "taints"
	checkAffinity    = "affinity"
)

// CheckNames returns the names of all checks. The caller owns the slice.
func CheckNames() []string {
	return []string{checkReady, checkSchedulable, checkTaints, checkAffinity}
}

// mismatch is a failed check or expectation. want completes "expected" and "waiting for".
type mismatch struct{ want, found string }

// findings are the mismatches of a node.
type findings []mismatch

func (f *findings) add(want, found string) { *f = append(*f, mismatch{want: want, found: found}) }

// String completes a message of a rejection.
func (f findings) String() string { return f.join("expected %s, but %s", "; ") }

// awaited completes "waiting for".
func (f findings) awaited() string { return f.join("%s (%s)", ", ") }

func (f findings) join(format, separator string) string {
	var parts []string
	for _, m := range f {
		parts = append(parts, fmt.Sprintf(format, m.want, m.found))
	}
	return strings.Join(text.Shorten(parts, maxShown), separator)
}

// judge returns the failed checks and expectations, or an error if waiting cannot help. It is pure, and does not allocate if
// there are none.
func judge(pod *corev1.Pod, node *corev1.Node, e expectations, on sets.Set[string]) (findings, error) {
	if node.DeletionTimestamp != nil {
		return nil, framework.Refuse(framework.ObjectOf(node), "the node is being deleted").Advise("choose another node")
	}
	var f findings
	if on.Has(checkReady) {
		f.checkReady(pod, node)
	}
	if on.Has(checkSchedulable) && node.Spec.Unschedulable &&
		!tolerates(pod, &corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}) {
		f.add("the node to be schedulable", "it is cordoned")
	}
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		filtered := taint.Effect == corev1.TaintEffectNoSchedule || taint.Effect == corev1.TaintEffectNoExecute
		if on.Has(checkTaints) && filtered && !tolerates(pod, taint) {
			f.add("the taint "+clip(taint.ToString())+" to be removed", "the node has it and the pod does not tolerate it")
		}
	}
	if on.Has(checkAffinity) {
		if err := f.checkAffinity(pod, node); err != nil {
			return nil, err
		}
	}
	for _, r := range e.labels {
		f.checkLabel(r, node.Labels, "")
	}
	for _, expected := range e.conditions {
		f.checkCondition(expected, node)
	}
	return f, nil
}

// checkReady passes a pod that kube-scheduler would pass. For a node that is not ready, the
// node lifecycle controller adds the taint not-ready, or unreachable if the status is
// Unknown, with both effects. It treats a node without the condition as Unknown; the API server has given such a node the
// taint not-ready.
func (f *findings) checkReady(pod *corev1.Pod, node *corev1.Node) {
	taints := []string{corev1.TaintNodeUnreachable}
	switch _, c := nodeutil.GetNodeCondition(&node.Status, corev1.NodeReady); {
	case c == nil:
		taints = append(taints, corev1.TaintNodeNotReady)
	case c.Status == corev1.ConditionTrue:
		return
	case c.Status == corev1.ConditionFalse:
		taints[0] = corev1.TaintNodeNotReady
	}
	for _, taint := range taints {
		if tolerates(pod, &corev1.Taint{Key: taint, Effect: corev1.TaintEffectNoSchedule}) &&
			tolerates(pod, &corev1.Taint{Key: taint, Effect: corev1.TaintEffectNoExecute}) {
			return
		}
	}
	f.checkCondition(nodecondition.Expectation{Type: corev1.NodeReady, Status: corev1.ConditionTrue}, node)
}

func (f *findings) checkCondition(expected nodecondition.Expectation, node *corev1.Node) {
	if found := expected.Mismatch(node); found != "" {
		f.add("the condition "+expected.String(), found)
	}
}

// tolerates allows the operators Gt and Lt of the feature gate
// TaintTolerationComparisonOperators: without the gate, the API server rejects pods that use
// them.
func tolerates(pod *corev1.Pod, taint *corev1.Taint) bool {
	return schedulinghelpers.TolerationsTolerateTaint(klog.Logger{}, pod.Spec.Tolerations, taint, true)
}

// checkAffinity returns an error if the affinity of the pod is invalid.
func (f *findings) checkAffinity(pod *corev1.Pod, node *corev1.Node) error {
	admits, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	switch {
	case admits:
		return nil
	case err != nil:
		return framework.Refuse(framework.ObjectOf(node), "the pod's required node affinity is invalid: %s", clip(err.Error())).
			Because(err).Advise("correct the pod")
	}
	// The helper does not explain its result.
	before := len(*f)
	selector, _ := labels.SelectorFromSet(pod.Spec.NodeSelector).Requirements()
	for _, r := range selector {
		f.checkLabel(r, node.Labels, " as required by the pod's nodeSelector")
	}
	if len(*f) > before {
		return nil
	}
	terms := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) == 1 && len(terms[0].MatchFields) == 0 {
		for _, e := range terms[0].MatchExpressions {
			operator := selection.Operator(strings.ToLower(string(e.Operator))) // The others have the same names.
			if e.Operator == corev1.NodeSelectorOpDoesNotExist {
				operator = selection.DoesNotExist
			}
			if r, err := labels.NewRequirement(e.Key, operator, e.Values); err == nil {
				f.checkLabel(*r, node.Labels, " as required by the pod's node affinity")
			}
		}
	}
	if len(*f) == before {
		f.add("the pod's required node affinity to admit the node", fmt.Sprintf("none of its %d terms matches", len(terms)))
	}
	return nil
}

// checkLabel checks the requirement. A mismatch ends with its origin.
func (f *findings) checkLabel(r labels.Requirement, of labels.Set, origin string) {
	if r.Matches(of) {
		return
	}
	found := "it is not set"
	if value, has := of[r.Key()]; has {
		found = fmt.Sprintf("it is %q", clip(value))
	}
	f.add(clip("the label "+r.Key()+" "+demand(r))+origin, found)
}

// demand returns the requirement as words that follow the label's key.
func demand(r labels.Requirement) string {
	values := r.ValuesUnsorted()
	list := `"` + strings.Join(values, `", "`) + `"`
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
