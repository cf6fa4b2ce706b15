// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

// expecting parses the expectations of a scheduler.
func expecting(t testing.TB, labels, conditions string) expectations {
	t.Helper()
	e, err := parse(map[string]framework.Parameter{
		keyExpect: {Annotation: keyExpect, Value: labels}, keyConditions: {Annotation: keyConditions, Value: conditions},
	}, maxWait)
	require.NoError(t, err)
	return e
}

const (
	in           = corev1.NodeSelectorOpIn
	exists       = corev1.NodeSelectorOpExists
	gt           = corev1.NodeSelectorOpGt
	noSchedule   = corev1.TaintEffectNoSchedule
	noExecute    = corev1.TaintEffectNoExecute
	preferNot    = corev1.TaintEffectPreferNoSchedule
	notReady     = corev1.TaintNodeNotReady
	unreachable  = corev1.TaintNodeUnreachable
	notSchedule  = corev1.TaintNodeUnschedulable
	whateverItIs = corev1.TolerationOpExists
)

func TestJudge(t *testing.T) {
	// The relevant tolerations that the DaemonSet controller adds.
	daemon := tolerating(
		corev1.Toleration{Key: notReady, Operator: whateverItIs, Effect: noExecute},
		corev1.Toleration{Key: unreachable, Operator: whateverItIs, Effect: noExecute},
		corev1.Toleration{Key: notSchedule, Operator: whateverItIs, Effect: noSchedule},
	)
	both := wanting(term(expression("a", exists)))
	both.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	byName := corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{expression("metadata.name", in, "node-b")}}
	cases := map[string]struct {
		reason             string
		pod                *corev1.Pod
		node               *corev1.Node
		labels, conditions string
		checks             sets.Set[string]
		want               []string
		final              bool
	}{
		"Well":     {reason: "the node passes all checks", checks: all},
		"Leaving":  {reason: "the plugin always checks that the node is not being deleted", node: theNode(terminating), want: []string{"the node is being deleted"}, final: true},
		"AllOff":   {reason: "only enabled checks run", node: theNode(reportsNothing, cordoned, taint("a", "b", noSchedule)), pod: wanting()},
		"NotReady": {reason: "the node is not ready", checks: sets.New("ready"), node: theNode(reports("Ready", "False", "KubeletNotReady")), want: []string{"expected the condition Ready to be True, but it is False (KubeletNotReady)"}},
		"Unknown":  {reason: "the state of the node is unknown", checks: sets.New("ready"), node: theNode(reports("Ready", "Unknown", "")), want: []string{"expected the condition Ready to be True, but it is Unknown"}},
		"NeverReady": {
			reason: "the node lifecycle controller treats it as Unknown", checks: sets.New("ready"), node: theNode(reportsNothing),
			want: []string{"expected the condition Ready to be True, but it is not set"},
		},
		"NotReadyTolerated":     {reason: "the pod is meant for such nodes", checks: sets.New("ready"), node: theNode(reports("Ready", "False", "")), pod: thePod(gen.Tolerates(notReady))},
		"UnknownTolerated":      {reason: "the pod tolerates the taint unreachable", checks: sets.New("ready"), node: theNode(reports("Ready", "Unknown", "")), pod: thePod(gen.Tolerates(unreachable))},
		"UnknownIsNotNotReady":  {reason: "another taint applies", checks: sets.New("ready"), node: theNode(reports("Ready", "Unknown", "")), pod: thePod(gen.Tolerates(notReady)), want: []string{"expected the condition Ready to be True, but it is Unknown"}},
		"NotReadyDaemon":        {reason: "like in kube-scheduler, tolerations for NoExecute are not enough", checks: sets.New("ready"), node: theNode(reports("Ready", "False", "")), pod: daemon, want: []string{"expected the condition Ready to be True, but it is False"}},
		"NotReadyOneEffect":     {reason: "both effects must be tolerated", checks: sets.New("ready"), node: theNode(reports("Ready", "False", "")), pod: tolerating(corev1.Toleration{Key: notReady, Operator: whateverItIs, Effect: noSchedule}), want: []string{"expected the condition Ready to be True, but it is False"}},
		"Cordoned":              {reason: "the node is cordoned", checks: sets.New("schedulable"), node: theNode(cordoned), want: []string{"expected the node to be schedulable, but it is cordoned"}},
		"CordonedForDaemon":     {reason: "the pod tolerates the taint", checks: sets.New("schedulable"), node: theNode(cordoned), pod: daemon},
		"Drained":               {reason: "checks are independent", checks: all, node: theNode(cordoned, taint(notSchedule, "", noSchedule)), want: []string{"expected the node to be schedulable, but it is cordoned", "expected the taint node.kubernetes.io/unschedulable:NoSchedule to be removed, but the node has it and the pod does not tolerate it"}},
		"Taints":                {reason: "the message lists all taints with an effect on scheduling", checks: sets.New("taints"), node: theNode(taint("a", "b", noSchedule), taint("c", "", preferNot), taint("d", "", noExecute)), want: []string{"expected the taint a=b:NoSchedule to be removed, but the node has it and the pod does not tolerate it", "expected the taint d:NoExecute to be removed, but the node has it and the pod does not tolerate it"}},
		"TaintsTolerated":       {reason: "the pod tolerates the taint", checks: sets.New("taints"), node: theNode(taint("a", "b", noSchedule)), pod: thePod(gen.Tolerates("a"))},
		"NodeSelector":          {reason: "the message lists each label in sorted order", checks: sets.New("affinity"), node: theNode(label("disk", "hdd"), label("arch", "x")), pod: thePod(gen.NodeSelector("zone", "z1"), gen.NodeSelector("disk", "ssd"), gen.NodeSelector("arch", "x")), want: []string{`expected the label disk to be "ssd" as required by the pod's nodeSelector, but it is "hdd"`, `expected the label zone to be "z1" as required by the pod's nodeSelector, but it is not set`}},
		"NodeSelectorAndTerms":  {reason: "the nodeSelector is reported first", checks: sets.New("affinity"), pod: both, want: []string{`expected the label disk to be "ssd" as required by the pod's nodeSelector, but it is not set`}},
		"Affinity":              {reason: "the message lists all requirements of a single term", checks: sets.New("affinity"), node: theNode(label("zone", "z3"), label("old", "yes"), label("gen", "4")), pod: wanting(term(expression("zone", in, "z1", "z2"), expression("old", corev1.NodeSelectorOpDoesNotExist), expression("gen", gt, "5"), expression("gen", corev1.NodeSelectorOpLt, "5"))), want: []string{`expected the label zone to be one of "z1", "z2" as required by the pod's node affinity, but it is "z3"`, `expected the label old not to be set as required by the pod's node affinity, but it is "yes"`, `expected the label gen to be a number above "5" as required by the pod's node affinity, but it is "4"`}},
		"AffinityOfTerms":       {reason: "the message counts several terms", checks: sets.New("affinity"), pod: wanting(term(expression("a", exists)), term(expression("b", exists))), want: []string{"expected the pod's required node affinity to admit the node, but none of its 2 terms matches"}},
		"AffinityByName":        {reason: "a term with a name has no labels", checks: sets.New("affinity"), pod: wanting(byName), want: []string{"expected the pod's required node affinity to admit the node, but none of its 1 terms matches"}},
		"AffinityOfNothing":     {reason: "an affinity without terms matches no node", checks: sets.New("affinity"), pod: wanting(), want: []string{"expected the pod's required node affinity to admit the node, but none of its 0 terms matches"}},
		"AffinityUnreadable":    {reason: "waiting cannot help", checks: sets.New("affinity"), pod: wanting(term(expression("a", gt, "x"))), want: []string{"the pod's required node affinity is invalid: "}, final: true},
		"AffinityPartlyMatches": {reason: "an invalid term does not matter if another term matches", checks: sets.New("affinity"), node: theNode(label("b", "")), pod: wanting(term(expression("a", gt, "x")), term(expression("b", exists)))},

		"Label":            {reason: "the node is as expected", labels: "driver=550,zone in (z1,z2),!maintenance,gen>5", node: theNode(label("driver", "550"), label("zone", "z2"), label("gen", "6"))},
		"LabelOther":       {reason: "the scheduler's view is out of date", labels: "gpu.example.com/driver=550", node: theNode(label("gpu.example.com/driver", "535")), want: []string{`expected the label gpu.example.com/driver to be "550", but it is "535"`}},
		"LabelMissing":     {reason: "the scheduler's view is out of date", labels: "driver==550", want: []string{`expected the label driver to be "550", but it is not set`}},
		"LabelThere":       {reason: "the scheduler's view is out of date", labels: "!maintenance", node: theNode(label("maintenance", "")), want: []string{`expected the label maintenance not to be set, but it is ""`}},
		"LabelNotThere":    {reason: "the scheduler's view is out of date", labels: "gpu", want: []string{`expected the label gpu to be set, but it is not set`}},
		"LabelNot":         {reason: "the scheduler's view is out of date", labels: "zone!=z1", node: theNode(label("zone", "z1")), want: []string{`expected the label zone not to be "z1", but it is "z1"`}},
		"LabelNotIn":       {reason: "the scheduler's view is out of date", labels: "zone notin (z1,z2)", node: theNode(label("zone", "z1")), want: []string{`expected the label zone to be none of "z1", "z2", but it is "z1"`}},
		"Condition":        {reason: "the node is as expected", conditions: "GPUReady,DiskPressure!=True,Net=Unknown", node: theNode(reports("GPUReady", "True", ""), reports("Net", "Unknown", ""))},
		"ConditionOther":   {reason: "the scheduler's view is out of date", conditions: "GPUReady=True", node: theNode(reports("GPUReady", "False", "DriverCrashed")), want: []string{"expected the condition GPUReady to be True, but it is False (DriverCrashed)"}},
		"ConditionMissing": {reason: "a condition that is missing has no status", conditions: "GPUReady=Unknown", want: []string{"expected the condition GPUReady to be Unknown, but it is not set"}},
		"ConditionNot":     {reason: "the scheduler's view is out of date", conditions: "DiskPressure!=True", node: theNode(reports("DiskPressure", "True", "")), want: []string{"expected the condition DiskPressure not to be True, but it is True"}},
		"Many":             {reason: "the length of a message is limited", labels: "a,b,c,d,e,f,g", conditions: "X", want: []string{"expected the label a to be set", "expected the label b", "expected the label c", "expected the label d", "expected the label e", "and 3 more"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pod, node := tc.pod, tc.node
			if pod == nil {
				pod = thePod()
			}
			if node == nil {
				node = theNode()
			}
			before := node.DeepCopy()
			got, err := judge(pod, node, expecting(t, tc.labels, tc.conditions), tc.checks)
			if tc.final {
				require.ErrorContains(t, err, tc.want[0], tc.reason)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, len(tc.want) == 0, len(got) == 0, "%s: %s", tc.reason, got)
			text := got.String()
			for _, want := range tc.want {
				assert.Contains(t, text, want, tc.reason)
			}
			assert.Len(t, strings.Split(text, "; "), max(len(tc.want), 1), "the message has no other findings: %s", text)
			assert.Equal(t, before, node, "judge does not change the node, because it belongs to the cache")
		})
	}
}

// Users write names and values of the maximum length.
func TestJudge_BoundsTheMessages(t *testing.T) {
	long := strings.Repeat("世", 5000)
	values := make([]string, 0, 1000)
	for i := range 1000 {
		values = append(values, fmt.Sprintf("v%d", i))
	}
	pod := wanting(term(expression("zone", in, values...)))
	node := theNode(reports("Ready", corev1.ConditionStatus(long), long+"\n"), label("a", long))
	for i := range 100 {
		taint(fmt.Sprintf("%s%d", long, i), long, noSchedule)(node)
	}
	f, err := judge(pod, node, expecting(t, "a=b,zone in ("+strings.Join(values[:500], ",")+")", ""), all)
	require.NoError(t, err)
	for _, text := range []string{f.String(), f.awaited()} {
		assert.LessOrEqual(t, len(text), 4096)
		assert.NotContains(t, text, "\n")
		assert.Contains(t, text, "and 99 more")
	}
}

// The API server gives a new node the taint not-ready, before the node has conditions.
func TestJudge_NewNode(t *testing.T) {
	pod := thePod()
	for _, e := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute} {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: e})
	}
	f, err := judge(pod, theNode(func(n *corev1.Node) {
		n.Status.Conditions = nil
		n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}
	}), expectations{}, all)
	require.NoError(t, err)
	assert.Empty(t, f)
}
