// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestLikeKubeScheduler contains the cases of the upstream tables of TaintToleration,
// NodeUnschedulable and NodeAffinity. The plugin must not reject a node that passes these filters
// of kube-scheduler.
func TestLikeKubeScheduler(t *testing.T) {
	dedicated := theNode(taint("dedicated", "user1", noSchedule))
	foo := theNode(taint("foo", "bar", noSchedule))
	level := func(value string) *corev1.Node { return theNode(taint("level", value, noSchedule)) }
	compares := func(operator corev1.TolerationOperator, value string) *corev1.Pod {
		return tolerating(corev1.Toleration{Key: "level", Operator: operator, Value: value, Effect: noSchedule})
	}
	labelled := func(labels map[string]string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", Labels: labels}}
	}
	bar := labelled(map[string]string{"foo": "bar"})
	gpu := labelled(map[string]string{"GPU": "NVIDIA-GRID-K1"})
	selects := func(pod *corev1.Pod, selector map[string]string) *corev1.Pod {
		pod.Spec.NodeSelector = selector
		return pod
	}
	both := func(t corev1.NodeSelectorTerm, expressions ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
		t.MatchExpressions = expressions
		return t
	}
	taints, schedulable, affinity := Checks{Taints: true}, Checks{Schedulable: true}, Checks{Affinity: true}
	cases := map[string]struct {
		checks Checks
		pod    *corev1.Pod
		node   *corev1.Node
		fits   bool
	}{
		"TaintToleration/no tolerations, a taint":            {checks: taints, pod: thePod(), node: dedicated},
		"TaintToleration/no operator is Equal":               {checks: taints, pod: tolerating(corev1.Toleration{Key: "dedicated", Value: "user1", Effect: noSchedule}), node: dedicated, fits: true},
		"TaintToleration/another value":                      {checks: taints, pod: tolerating(corev1.Toleration{Key: "dedicated", Operator: corev1.TolerationOpEqual, Value: "user2", Effect: noSchedule}), node: dedicated},
		"TaintToleration/Exists tolerates every value":       {checks: taints, pod: tolerating(corev1.Toleration{Key: "foo", Operator: whateverItIs, Effect: noSchedule}), node: foo, fits: true},
		"TaintToleration/an empty key tolerates every key":   {checks: taints, pod: tolerating(corev1.Toleration{Operator: whateverItIs}), node: theNode(taint("x", "y", noExecute)), fits: true},
		"TaintToleration/several of both, all tolerated":     {checks: taints, pod: tolerating(corev1.Toleration{Key: "dedicated", Operator: corev1.TolerationOpEqual, Value: "user2", Effect: noSchedule}, corev1.Toleration{Key: "foo", Operator: whateverItIs, Effect: noSchedule}), node: theNode(taint("dedicated", "user2", noSchedule), taint("foo", "bar", noSchedule)), fits: true},
		"TaintToleration/several of both, one is not":        {checks: taints, pod: tolerating(corev1.Toleration{Key: "foo", Operator: whateverItIs, Effect: noSchedule}), node: theNode(taint("foo", "bar", noSchedule), taint("dedicated", "user2", noSchedule))},
		"TaintToleration/another effect":                     {checks: taints, pod: tolerating(corev1.Toleration{Key: "foo", Operator: corev1.TolerationOpEqual, Value: "bar", Effect: preferNot}), node: foo},
		"TaintToleration/no effect is every effect":          {checks: taints, pod: tolerating(corev1.Toleration{Key: "foo", Operator: corev1.TolerationOpEqual, Value: "bar"}), node: foo, fits: true},
		"TaintToleration/PreferNoSchedule, another value":    {checks: taints, pod: tolerating(corev1.Toleration{Key: "dedicated", Value: "user2", Effect: noSchedule}), node: theNode(taint("dedicated", "user1", preferNot)), fits: true},
		"TaintToleration/PreferNoSchedule, no tolerations":   {checks: taints, pod: thePod(), node: theNode(taint("dedicated", "user1", preferNot)), fits: true},
		"TaintToleration/Gt, below":                          {checks: taints, pod: compares(corev1.TolerationOpGt, "950"), node: level("800")},
		"TaintToleration/Gt, above":                          {checks: taints, pod: compares(corev1.TolerationOpGt, "750"), node: level("950"), fits: true},
		"TaintToleration/Lt, above":                          {checks: taints, pod: compares(corev1.TolerationOpLt, "800"), node: level("950")},
		"TaintToleration/Lt, below":                          {checks: taints, pod: compares(corev1.TolerationOpLt, "950"), node: level("800"), fits: true},
		"TaintToleration/Gt, the taint is not a number":      {checks: taints, pod: compares(corev1.TolerationOpGt, "950"), node: level("high")},
		"TaintToleration/Gt, the toleration is not a number": {checks: taints, pod: compares(corev1.TolerationOpGt, "high"), node: level("950")},

		"NodeUnschedulable/unschedulable":                           {checks: schedulable, pod: thePod(), node: theNode(cordoned)},
		"NodeUnschedulable/schedulable":                             {checks: schedulable, pod: thePod(), node: theNode(), fits: true},
		"NodeUnschedulable/unschedulable, tolerated":                {checks: schedulable, pod: tolerating(corev1.Toleration{Key: notSchedule, Effect: noSchedule}), node: theNode(cordoned), fits: true},
		"NodeUnschedulable/unschedulable, another is tolerated":     {checks: schedulable, pod: tolerating(corev1.Toleration{Key: notReady, Effect: noSchedule}), node: theNode(cordoned)},
		"NodeUnschedulable/unschedulable, NoExecute does not match": {checks: schedulable, pod: tolerating(corev1.Toleration{Key: notSchedule, Operator: whateverItIs, Effect: noExecute}), node: theNode(cordoned)},

		"NodeAffinity/selector, no labels":                      {checks: affinity, pod: selects(thePod(), map[string]string{"foo": "bar"}), node: labelled(nil)},
		"NodeAffinity/selector, the same labels":                {checks: affinity, pod: selects(thePod(), map[string]string{"foo": "bar"}), node: bar, fits: true},
		"NodeAffinity/selector, more labels":                    {checks: affinity, pod: selects(thePod(), map[string]string{"foo": "bar"}), node: labelled(map[string]string{"foo": "bar", "baz": "blah"}), fits: true},
		"NodeAffinity/selector, fewer labels":                   {checks: affinity, pod: selects(thePod(), map[string]string{"foo": "bar", "baz": "blah"}), node: bar},
		"NodeAffinity/In":                                       {checks: affinity, pod: wanting(term(expression("foo", in, "bar", "value2"))), node: bar, fits: true},
		"NodeAffinity/In, another value":                        {checks: affinity, pod: wanting(term(expression("foo", in, "value1", "value2"))), node: bar},
		"NodeAffinity/Gt, with a leading zero":                  {checks: affinity, pod: wanting(term(expression("kernel-version", gt, "0204"))), node: labelled(map[string]string{"kernel-version": "0206"}), fits: true},
		"NodeAffinity/NotIn":                                    {checks: affinity, pod: wanting(term(expression("mem-type", notIn, "DDR", "DDR2"))), node: labelled(map[string]string{"mem-type": "DDR3"}), fits: true},
		"NodeAffinity/NotIn, no label":                          {checks: affinity, pod: wanting(term(expression("mem-type", notIn, "DDR"))), node: bar, fits: true},
		"NodeAffinity/Exists":                                   {checks: affinity, pod: wanting(term(expression("GPU", exists))), node: gpu, fits: true},
		"NodeAffinity/a term without expressions":               {checks: affinity, pod: wanting(term()), node: bar},
		"NodeAffinity/no terms":                                 {checks: affinity, pod: wanting(), node: bar},
		"NodeAffinity/no affinity":                              {checks: affinity, pod: thePod(), node: bar, fits: true},
		"NodeAffinity/affinity without a requirement":           {checks: affinity, pod: &corev1.Pod{Spec: corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}}}, node: bar, fits: true},
		"NodeAffinity/affinity to pods only":                    {checks: affinity, pod: &corev1.Pod{Spec: corev1.PodSpec{Affinity: &corev1.Affinity{}}}, node: bar, fits: true},
		"NodeAffinity/two expressions, both match":              {checks: affinity, pod: wanting(term(expression("GPU", exists), expression("GPU", notIn, "AMD", "INTER"))), node: gpu, fits: true},
		"NodeAffinity/two expressions, one matches":             {checks: affinity, pod: wanting(term(expression("GPU", exists), expression("GPU", in, "AMD", "INTER"))), node: gpu},
		"NodeAffinity/two terms, one matches":                   {checks: affinity, pod: wanting(term(expression("foo", in, "bar")), term(expression("diffkey", in, "wrong"))), node: bar, fits: true},
		"NodeAffinity/selector and affinity":                    {checks: affinity, pod: selects(wanting(term(expression("foo", exists))), map[string]string{"foo": "bar"}), node: bar, fits: true},
		"NodeAffinity/affinity but not the selector":            {checks: affinity, pod: selects(wanting(term(expression("foo", exists))), map[string]string{"foo": "bar"}), node: labelled(map[string]string{"foo": "barrrrrr"})},
		"NodeAffinity/an invalid value":                         {checks: affinity, pod: wanting(term(expression("foo", notIn, "invalid value: ___@#$%^"))), node: bar},
		"NodeAffinity/the name":                                 {checks: affinity, pod: wanting(named("node-a")), node: bar, fits: true},
		"NodeAffinity/another name":                             {checks: affinity, pod: wanting(named("node-b")), node: bar},
		"NodeAffinity/two names in a term":                      {checks: affinity, pod: wanting(named("node-b", "node-a")), node: bar},
		"NodeAffinity/two names in two terms":                   {checks: affinity, pod: wanting(named("node-b"), named("node-a")), node: bar, fits: true},
		"NodeAffinity/another name, or a label":                 {checks: affinity, pod: wanting(named("node-b"), term(expression("foo", in, "bar"))), node: bar, fits: true},
		"NodeAffinity/another name, and a label":                {checks: affinity, pod: wanting(both(named("node-b"), expression("foo", in, "bar"))), node: bar},
		"NodeAffinity/the name, and a label":                    {checks: affinity, pod: wanting(both(named("node-a"), expression("foo", in, "bar"))), node: bar, fits: true},
		"NodeAffinity/the name, and another label":              {checks: affinity, pod: wanting(both(named("node-a"), expression("foo", in, "x"))), node: bar},
		"NodeAffinity/neither the one term nor the other":       {checks: affinity, pod: wanting(named("node-b"), term(expression("foo", in, "x"))), node: bar},
		"NodeAffinity/an unknown operator does not match":       {checks: affinity, pod: wanting(term(expression("foo", "Like", "b"))), node: bar},
		"NodeAffinity/an invalid term and a matching term":      {checks: affinity, pod: wanting(term(expression("foo", "Like", "b")), term(expression("foo", exists))), node: bar, fits: true},
		"NodeAffinity/a field other than the name has no match": {checks: affinity, pod: wanting(corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{expression("metadata.uid", in, "1")}}), node: bar},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := judge(tc.pod, tc.node, expectations{}, tc.checks)
			assert.Equal(t, tc.fits, got.none(), "%s", got)
		})
	}
}
