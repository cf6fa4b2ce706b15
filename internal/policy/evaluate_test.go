// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
)

func meta(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }

func widgetOf(name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": name}, "spec": spec,
	}}
}

// world are the objects of most tests.
func world() *objects {
	return &objects{
		resources: map[string][]client.Object{
			"namespaceObject": {&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "demo", Labels: map[string]string{"team": "ml"}}}},
			"claims": {&corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "data-0"}, Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: new("fast")},
			}},
			"csinode": {&storagev1.CSINode{ObjectMeta: meta("node-1"), Spec: storagev1.CSINodeSpec{
				Drivers: []storagev1.CSINodeDriver{{Name: "a", NodeID: "1"}, {Name: "b", NodeID: "2"}},
			}}},
			"agents": {
				&corev1.Pod{ObjectMeta: meta("cni-1"), Status: corev1.PodStatus{Phase: corev1.PodRunning}},
				&corev1.Pod{ObjectMeta: meta("cni-2"), Status: corev1.PodStatus{Phase: corev1.PodPending}},
			},
			"w": {widgetOf("node-1", map[string]any{"size": int64(3), "ratio": 1.5, "tags": []any{"x", "y"}, "map": map[string]any{"b": "2", "a": "1"}, "on": true, "none": nil})},
		},
	}
}

const declared = `
resources:
- {name: csinode, apiVersion: storage.k8s.io/v1, kind: CSINode, nameExpression: node.metadata.name}
- {name: other, apiVersion: storage.k8s.io/v1, kind: CSINode, nameExpression: "'other'"}
- {name: none, apiVersion: storage.k8s.io/v1, kind: CSINode, nameExpression: "''"}
- {name: agents, apiVersion: v1, kind: Pod, namespace: kube-system, labelSelector: {matchLabels: {app: cni}}, onNode: true}
- {name: w, apiVersion: example.com/v1, kind: Widget, nameExpression: node.metadata.name}
- {name: claimed, apiVersion: v1, kind: ConfigMap, nameExpression: "claims['data'].metadata.name", namespaceExpression: pod.metadata.namespace}
`

// Expressions see all variables.
func TestEvaluate_Expressions(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, expression string
	}{
		"Pod":              {reason: "the pod is typed", expression: "pod.metadata.name == 'web' && pod.metadata.namespace == 'demo'"},
		"Allocatable":      {reason: "keys of named types are strings", expression: "'nvidia.com/gpu' in node.status.allocatable && quantity(node.status.allocatable['nvidia.com/gpu']).isGreaterThan(quantity('7'))"},
		"Object":           {reason: "the object is the Binding", expression: "object.target.name == 'node-1'"},
		"Request":          {reason: "the user is known", expression: "request.userInfo.username == 'scheduler' && 'g' in request.userInfo.groups && request.userInfo.extra['k'] == ['v'] && !request.dryRun"},
		"RequestEmpty":     {reason: "fields of the user are always present", expression: "request.userInfo.uid == ''"},
		"Strings":          {reason: "times and quantities are strings", expression: "timestamp(node.metadata.creationTimestamp) < timestamp('2027-01-01T00:00:00Z') && node.metadata.creationTimestamp.startsWith('2026') && node.status.allocatable['nvidia.com/gpu'] == '8'"},
		"Namespace":        {reason: "the namespace is read", expression: "namespaceObject.metadata.labels['team'] == 'ml'"},
		"Claims":           {reason: "claims are by the name of the volume", expression: "claims['data'].spec.storageClassName == 'fast' && claims.data.metadata.name == 'data-0'"},
		"ClaimMissing":     {reason: "a missing claim is null", expression: "'missing' in claims && claims['missing'] == null && !('foo' in claims)"},
		"ClaimOptional":    {reason: "null has no fields", expression: "claims[?'missing'].?spec.?storageClassName.orValue('x') == 'x'"},
		"Resource":         {reason: "the resource is read by name", expression: "resources.csinode.spec.drivers.exists(d, d.name == 'b')"},
		"ResourceMissing":  {reason: "a missing object is null", expression: "resources.other == null && !has(resources.other)"},
		"ResourceNull":     {reason: "null has no fields", expression: "resources.?other.?spec.orValue(null) == null && !has(resources.other.spec)"},
		"List":             {reason: "other resources are lists", expression: "resources.agents.size() == 2 && resources.agents.exists(p, p.status.phase == 'Running') && !resources.agents.all(p, p.status.phase == 'Running')"},
		"ListIndex":        {reason: "lists have indexes", expression: "resources.agents[1].metadata.name == 'cni-2' && resources.agents[?5] == optional.none()"},
		"Custom":           {reason: "custom resources are dynamic", expression: "resources.w.spec.size == 3 && resources.w.spec.ratio > 1 && resources.w.kind == 'Widget' && resources.w.spec.on"},
		"CustomHas":        {reason: "fields of custom resources may be absent", expression: "has(resources.w.spec.size) && !has(resources.w.spec.foo) && resources.w.spec.?foo.orValue('x') == 'x'"},
		"CustomNull":       {reason: "null is a value", expression: "resources.w.spec.none == null"},
		"Time":             {reason: "an unset time is absent", expression: "!has(pod.metadata.creationTimestamp)"},
		"Absent":           {reason: "optional access works for typed objects", expression: "pod.metadata.?annotations[?'a'].orValue('x') == 'x'"},
		"Variables":        {reason: "a variable uses those before it", expression: "variables.b == 3"},
		"VariableShadowed": {reason: "a variable of a comprehension can have the name of a global one", expression: "[1].all(resources, resources == 1) && [1].all(pod, .pod.metadata.name == 'web')"},
		"Dyn":              {reason: "dyn works for typed objects", expression: "dyn(pod).metadata.name == 'web' && !has(dyn(pod).foo)"},
		"IP":               {reason: "the libraries of Kubernetes exist", expression: "ip('10.0.0.1').family() == 4"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := declared + "variables: [{name: a, expression: '1'}, {name: b, expression: variables.a + 2}]\n" + validation(tc.expression)
			s := subject()
			s.User = authenticationv1.UserInfo{Username: "scheduler", Groups: []string{"g"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}}}
			r := evaluate(t, spec, s, world())
			assert.Equal(t, policy.Allowed, r.Verdict, "%s: %s", tc.reason, r.Message)
		})
	}
}

func TestEvaluate_Verdicts(t *testing.T) {
	const wait = "waitFor: [{name: a, expression: %s, timeout: 1m, onTimeout: %s}]"
	late := 2 * time.Minute
	for name, tc := range map[string]struct {
		reason, spec, rule, message string
		change                      func(s *policy.Subject)
		waited, until               time.Duration
		want                        policy.Verdict
		waived                      []string
	}{
		"Rejected":           {reason: "a validation is false", spec: "validations: [{expression: 'true'}, {expression: 'false', message: denied}]", want: policy.Rejected, rule: "spec.validations[1]", message: "denied"},
		"DefaultOneLine":     {reason: "a message is one line", spec: "validations: [{expression: \"1 ==\\n 2\"}]", want: policy.Rejected, rule: "spec.validations[0]", message: "failed expression: 1 ==  2"},
		"MessageExpression":  {reason: "it wins over message", spec: "validations: [{expression: 'false', message: denied, messageExpression: \"'not ' + pod.metadata.name\"}]", want: policy.Rejected, rule: "spec.validations[0]", message: "not web"},
		"MessageFails":       {reason: "message is the fallback", spec: "validations: [{expression: 'false', message: denied, messageExpression: \"pod.metadata.labels['x']\"}]", want: policy.Rejected, rule: "spec.validations[0]", message: "denied"},
		"MessageLines":       {reason: "message is the fallback", spec: "validations: [{expression: 'false', message: denied, messageExpression: \"'a\\\\nb'\"}]", want: policy.Rejected, rule: "spec.validations[0]", message: "denied"},
		"MessageControl":     {reason: "control characters do not reach logs", spec: "validations: [{expression: 'false', messageExpression: \"'a\\\\x1b[1mb'\"}]", want: policy.Rejected, rule: "spec.validations[0]", message: "a?[1mb"},
		"MessageDyn":         {reason: "a dyn message must be a string", spec: "validations: [{expression: 'false', message: denied, messageExpression: dyn(1)}]", want: policy.Rejected, rule: "spec.validations[0]", message: "denied"},
		"ErrorIgnored":       {reason: "the failure policy ignores it", spec: "failurePolicy: Ignore\n" + validation("pod.metadata.labels['x'] == 'y'"), want: policy.Ignored, rule: "spec.validations[0]", message: "spec.validations[0]: no such key: labels"},
		"DynNoBool":          {reason: "the type is checked at runtime", spec: validation("dyn('x')"), want: policy.Failed, rule: "spec.validations[0]", message: "spec.validations[0]: must return bool, but returned string"},
		"ErrorInVariable":    {reason: "the message names the variable", spec: "variables: [{name: v, expression: \"pod.metadata.labels['x']\"}]\n" + validation("variables.v == 'y'"), want: policy.Failed, rule: "spec.validations[0]", message: "spec.validations[0]: spec.variables[0].expression: no such key: labels"},
		"ErrorOfNull":        {reason: "the message names the object that does not exist", spec: strings.Replace(csiNode, "node.metadata.name", "\"'other'\"", 1) + validation("size(resources.csinode.spec.drivers) > 0"), want: policy.Failed, rule: "spec.validations[0]", message: "spec.validations[0]: no such key: spec; resources.csinode is null"},
		"UnusedVariable":     {reason: "variables are lazy", spec: "variables: [{name: v, expression: \"pod.metadata.labels['x']\"}]\n" + validation("true || variables.v == 'y'"), want: policy.Allowed},
		"NotMatched":         {reason: "a condition is false", spec: "matchConditions: [{name: a, expression: 'true'}, {name: b, expression: 'false'}]\n" + validation("false"), want: policy.NotMatched, rule: "spec.matchConditions[b]"},
		"Matched":            {reason: "all conditions are true", spec: "matchConditions: [{name: a, expression: 'true'}]\n" + validation("false"), want: policy.Rejected, rule: "spec.validations[0]", message: "failed expression: false"},
		"ConditionFails":     {reason: "a condition fails", spec: "matchConditions: [{name: a, expression: 'true'}, {name: b, expression: \"pod.metadata.labels['x'] == 'y'\"}]\n" + validation("true"), want: policy.Failed, rule: "spec.matchConditions[b]", message: "spec.matchConditions[b]: no such key: labels"},
		"FalseWins":          {reason: "a false condition wins over one that fails", spec: "matchConditions: [{name: b, expression: \"pod.metadata.labels['x'] == 'y'\"}, {name: a, expression: 'false'}]\n" + validation("true"), want: policy.NotMatched, rule: "spec.matchConditions[a]"},
		"WaitingAllow":       {reason: "the timeout changes the verdict, too", spec: fmt.Sprintf(wait, "'false'", "Allow"), want: policy.Waiting, rule: "spec.waitFor[a]", message: "waiting for a", until: time.Minute},
		"TimedOutAllow":      {reason: "the wait is over", spec: fmt.Sprintf(wait, "'false'", "Allow"), waited: late, want: policy.Allowed, waived: []string{"a"}},
		"DefaultTimeout":     {reason: "the default is two minutes", spec: "waitFor: [{name: a, expression: 'false'}]", waited: time.Minute, want: policy.Waiting, rule: "spec.waitFor[a]", message: "waiting for a", until: 2 * time.Minute},
		"DefaultTimedOut":    {reason: "the default is Refuse", spec: "waitFor: [{name: a, expression: 'false', message: m}]", waited: late, want: policy.TimedOut, rule: "spec.waitFor[a]", message: "m (timed out after 2m0s)"},
		"ValidationFirst":    {reason: "a bind that is rejected does not wait", spec: validation("false") + fmt.Sprintf(wait, "'false'", "Refuse"), want: policy.Rejected, rule: "spec.validations[0]", message: "failed expression: false"},
		"SeveralWaits":       {reason: "the first gives the message, the earliest timeout counts", spec: "waitFor: [{name: a, expression: 'false', timeout: 2m}, {name: b, expression: 'true'}, {name: c, expression: 'false', timeout: 1m}]", want: policy.Waiting, rule: "spec.waitFor[a]", message: "waiting for a (and 1 more)", until: time.Minute},
		"SomeTimedOut":       {reason: "one timeout is enough", spec: "waitFor: [{name: a, expression: 'false', timeout: 3m}, {name: b, expression: 'false', timeout: 2m}]", waited: late, want: policy.TimedOut, rule: "spec.waitFor[b]", message: "the condition b is not met (timed out after 2m0s)"},
		"SomeWaived":         {reason: "the other wait continues", spec: "waitFor: [{name: a, expression: 'false', timeout: 1m, onTimeout: Allow}, {name: b, expression: 'false', timeout: 3m}]", waited: late, want: policy.Waiting, rule: "spec.waitFor[b]", message: "waiting for b", until: 3 * time.Minute, waived: []string{"a"}},
		"WaitFails":          {reason: "a runtime error rejects", spec: fmt.Sprintf(wait, "\"pod.metadata.labels['x'] == 'y'\"", "Refuse"), want: policy.Failed, rule: "spec.waitFor[a]", message: "spec.waitFor[a]: no such key: labels"},
		"FailsAfterFalse":    {reason: "the first wait makes the second possible", spec: "waitFor: [{name: a, expression: has(pod.metadata.labels), timeout: 1m}, {name: b, expression: \"pod.metadata.labels['x'] == 'y'\", timeout: 1m}]", want: policy.Waiting, rule: "spec.waitFor[a]", message: "waiting for a (and 1 more)", until: time.Minute},
		"FailsAfterTimedOut": {reason: "the first wait is still false", spec: "waitFor: [{name: a, expression: has(pod.metadata.labels)}, {name: b, expression: \"pod.metadata.labels['x'] == 'y'\"}]", waited: late, want: policy.TimedOut, rule: "spec.waitFor[a]", message: "the condition a is not met (timed out after 2m0s)"},
		"LabelInvalid":       {reason: "the API server would reject the pod", spec: "mutations: {labels: [{key: a, valueExpression: \"'a b'\"}]}", want: policy.Failed, rule: "spec.mutations.labels[p.policy.prebind.dev/a]"},
		"ValueDyn":           {reason: "the type is checked at runtime", spec: "mutations: {annotations: [{key: a, valueExpression: dyn(1)}]}", want: policy.Failed, rule: "spec.mutations.annotations[p.policy.prebind.dev/a]", message: "spec.mutations.annotations[p.policy.prebind.dev/a]: must return string or null, but returned int"},
		"ValueFails":         {reason: "a runtime error rejects", spec: "mutations: {annotations: [{key: a, valueExpression: pod.spec.nodeName}]}", want: policy.Failed, rule: "spec.mutations.annotations[p.policy.prebind.dev/a]", message: "spec.mutations.annotations[p.policy.prebind.dev/a]: no such key: nodeName"},
		"Recursion": {
			reason: "the name of the resource depends on itself", want: policy.Failed, rule: "spec.validations[0]",
			spec: "resources: [{name: a, apiVersion: v1, kind: Node, nameExpression: variables.v}]\n" +
				"variables: [{name: v, expression: \"resources.a == null ? 'x' : 'y'\"}]\n" + validation("resources.a != null"),
			message: "spec.validations[0]: spec.resources[0].nameExpression: spec.variables[0].expression: a depends on itself",
		},
		"AnnotationSize": {
			reason: "a large value cannot make the pod too large", want: policy.Failed, rule: "spec.mutations.annotations",
			spec:    "mutations: {annotations: [{key: a, valueExpression: \"node.metadata.annotations['a']\"}, {key: b, valueExpression: \"node.metadata.annotations['a']\"}]}",
			change:  func(s *policy.Subject) { s.Node.Annotations = map[string]string{"a": strings.Repeat("x", 200<<10)} },
			message: "spec.mutations.annotations: annotations size 409644 is larger than limit 262144",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := subject()
			if tc.change != nil {
				tc.change(s)
			}
			s.Now = now.Add(tc.waited)
			r := evaluate(t, tc.spec, s, world())
			assert.Equal(t, tc.want, r.Verdict, "%s: %s", tc.reason, r.Message)
			assert.Equal(t, tc.rule, r.Rule, tc.reason)
			if tc.message != "" || tc.want == policy.Allowed || tc.want == policy.NotMatched {
				assert.Equal(t, tc.message, r.Message, tc.reason)
			}
			until := time.Time{}
			if tc.until > 0 {
				until = now.Add(tc.until)
			}
			assert.Equal(t, until, r.Until, tc.reason)
			assert.Equal(t, tc.waived, r.Waived, tc.reason)
			assert.Equal(t, tc.want == policy.Failed || tc.want == policy.Ignored, r.Err != nil, tc.reason)
			assert.Equal(t, "p", r.Policy)
		})
	}
}

func TestEvaluate_Mutations(t *testing.T) {
	spec := `
mutations:
  annotations:
  - {key: string, valueExpression: "'x'"}
  - {key: empty, valueExpression: "''"}
  - {key: unset, valueExpression: "null"}
  - {key: none, valueExpression: "pod.metadata.?labels[?'x']"}
  - {key: some, valueExpression: "node.metadata.labels[?'nvidia.com/gpu.clique']"}
  - {key: dyn, valueExpression: "dyn('x')"}
  - {key: conditional, valueExpression: "size(pod.metadata.name) > 0 ? dyn(null) : dyn('x')"}
  labels:
  - {key: l, valueExpression: node.metadata.name}
`
	r := evaluate(t, spec, subject(), world())
	require.Equal(t, policy.Allowed, r.Verdict, r.Message)
	const own = "p.policy.prebind.dev/"
	assert.Equal(t, map[string]string{own + "string": "x", own + "empty": "", own + "some": "a.1", own + "dyn": "x"}, r.Annotations)
	assert.Equal(t, map[string]string{own + "l": "node-1"}, r.Labels)
}

// Tasks have their parameters, and begin when the waits are over.
func TestEvaluate_Tasks(t *testing.T) {
	const task = `tasks: [{name: prefetch, handler: example.com/prefetch, parameters: [{key: node, valueExpression: node.metadata.name}, {key: none, valueExpression: 'null'}, {key: big, valueExpression: %s}]}]`
	spec := fmt.Sprintf(task, `"'x'"`)
	r := evaluate(t, spec, subject(), world())
	assert.Equal(t, []policy.Task{{
		Policy: "p", Name: "prefetch", Handler: "example.com/prefetch", Parameters: map[string]string{"node": "node-1", "big": "x"},
		Timeout: 2 * time.Minute, Retain: v1alpha1.RetainWhilePodRuns,
	}}, r.Tasks)

	waits := evaluate(t, fmt.Sprintf(task, `"'x'"`)+"\nwaitFor: [{name: never, expression: 'false'}]", subject(), world())
	assert.Empty(t, waits.Tasks, "tasks begin when the waits are over")

	large := evaluate(t, fmt.Sprintf(task, `"['x'].map(x, '0123456789'.replace('', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa')).map(x, x + x + x + x + x + x + x + x + x + x)[0]"`), subject(), world())
	assert.Equal(t, policy.Failed, large.Verdict)
	assert.Equal(t, "spec.tasks[prefetch]", large.Rule)
	assert.Contains(t, large.Message, "more than 4096")
	assert.Empty(t, large.Tasks)
}

func TestEvaluate_LongMessages(t *testing.T) {
	for _, spec := range []string{
		"validations: [{expression: 'false', messageExpression: \"pod.metadata.name\"}]",
		"waitFor: [{name: a, expression: 'false', messageExpression: \"pod.metadata.name\"}, {name: b, expression: 'false'}]",
		"validations: [{expression: 'false', message: \"" + strings.Repeat("é", 1000) + "\"}]",
	} {
		s := subject()
		s.Pod.Name = strings.Repeat("é", 1000)
		r := evaluate(t, spec, s, world())
		assert.LessOrEqual(t, len(r.Message), policy.MaxMessage)
		assert.Greater(t, len(r.Message), policy.MaxMessage-10)
		assert.True(t, utf8.ValidString(r.Message))
	}
}

// Binds share the objects of the cache, so reading a quantity, which can cache its text, must not change one.
func TestEvaluate_DoesNotChangeObjects(t *testing.T) {
	c := compile(t, "variables: [{name: limit, expression: \"quantity(pod.spec.volumes[0].emptyDir.sizeLimit)\"}]\n"+
		validation("variables.limit.isLessThan(quantity(node.status.allocatable['memory']))"))
	s := subject()
	s.Pod.Spec.Volumes = []corev1.Volume{{Name: "a", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: resource.NewQuantity(1<<30, resource.BinarySI)}}}}
	s.Node.Status.Allocatable = corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(1<<40, resource.BinarySI)}
	pod, node := s.Pod.DeepCopy(), s.Node.DeepCopy()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			bind := subject()
			bind.Pod, bind.Node = s.Pod, s.Node
			r, err := c.Evaluate(t.Context(), bind, world())
			assert.NoError(t, err)
			assert.Equal(t, policy.Allowed, r.Verdict, r.Message)
		})
	}
	wg.Wait()
	assert.Equal(t, pod, s.Pod)
	assert.Equal(t, node, s.Node)
}

// Objects are read once, and only if an expression needs them.
func TestEvaluate_Reads(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, spec string
		want         []string
	}{
		"Once":   {reason: "each value is kept", spec: declared + "variables: [{name: v, expression: resources.csinode.spec}]\n" + validation("resources.csinode != null && variables.v.drivers.size() == 2 && variables.v == variables.v && claims == claims && namespaceObject != null && namespaceObject.metadata.name == 'demo'"), want: []string{"csinode:/node-1", "claims:demo/data-0", "claims:demo/data-1", "namespaceObject:/demo"}},
		"Short":  {reason: "the first operand decides", spec: declared + validation("true || resources.csinode != null")},
		"Names":  {reason: "the name needs the claims", spec: declared + validation("resources.claimed == null && resources.agents.size() == 2"), want: []string{"claims:demo/data-0", "claims:demo/data-1", "claimed:demo/data-0", "agents:kube-system/"}},
		"NoName": {reason: "without a name, there is no object", spec: declared + validation("resources.none == null")},
	} {
		t.Run(name, func(t *testing.T) {
			o := world()
			r := evaluate(t, tc.spec, subject(), o)
			require.Equal(t, policy.Allowed, r.Verdict, r.Message)
			assert.Equal(t, tc.want, o.reads, tc.reason)
		})
	}
}

// An object that cannot be read is an error of the policy. The next read can succeed.
func TestEvaluate_ReadErrors(t *testing.T) {
	broken := errors.New("broken")
	const ignore = "failurePolicy: Ignore\n"
	for name, tc := range map[string]struct {
		spec string
		want policy.Verdict
	}{
		"Resource":    {spec: declared + validation("resources.csinode != null"), want: policy.Waiting},
		"Ignore":      {spec: ignore + declared + validation("resources.csinode != null"), want: policy.Ignored},
		"Absorbed":    {spec: declared + validation("resources.csinode != null || true"), want: policy.Allowed},
		"Namespace":   {spec: validation("namespaceObject == null"), want: policy.Waiting},
		"Condition":   {spec: "matchConditions: [{name: a, expression: 'claims == {}'}]\n" + validation("true"), want: policy.Waiting},
		"OtherFalse":  {spec: "matchConditions: [{name: a, expression: 'claims == {}'}, {name: b, expression: 'false'}]\n" + validation("true"), want: policy.NotMatched},
		"Name":        {spec: declared + validation("resources.claimed == null"), want: policy.Waiting},
		"Message":     {spec: "validations: [{expression: 'false', messageExpression: namespaceObject.metadata.name}]", want: policy.Rejected},
		"Validations": {spec: "validations: [{expression: 'claims == {}'}, {expression: 'false'}]", want: policy.Rejected},
		"Mutation":    {spec: ignore + "mutations: {annotations: [{key: a, valueExpression: namespaceObject.metadata.name}]}", want: policy.Ignored},
	} {
		t.Run(name, func(t *testing.T) {
			o := world()
			o.err = broken
			s := subject()
			r := evaluate(t, tc.spec, s, o)
			assert.Equal(t, tc.want, r.Verdict, r.Message)
			if tc.want == policy.Waiting {
				assert.Contains(t, r.Message, "waiting for the policy to become ready: ")
				assert.Contains(t, r.Message, "broken")
				assert.True(t, r.Until.After(s.Now), "no object can wake the bind")
			}
		})
	}
}

// The tasks of a policy count before it is known whether it matches.
func TestEvaluate_Needs(t *testing.T) {
	const task = "tasks: [{name: a, handler: example.com/a}]\n"
	for name, tc := range map[string]struct {
		reason, spec string
		broken       error
		want         int
	}{
		"Preparing": {reason: "it can match once it is compiled", spec: task, broken: policy.ErrPreparing, want: 1},
		"Namespace": {reason: "the labels of the namespace can match", spec: task + "matchConstraints: {namespaceSelector: {matchLabels: {team: ml}}}", want: 1},
		"Condition": {reason: "a condition can be true", spec: task + "matchConditions: [{name: a, expression: 'claims == {}'}]", want: 1},
		"Ignore":    {reason: "the bind does not wait for it", spec: task + "failurePolicy: Ignore", broken: policy.ErrPreparing},
	} {
		t.Run(name, func(t *testing.T) {
			o := world()
			o.err = errors.New("not cached")
			c := compile(t, tc.spec)
			if tc.broken != nil {
				c = policy.Broken(parseSpec(t, tc.spec), tc.broken)
			}
			r, err := c.Evaluate(t.Context(), subject(), o)
			require.NoError(t, err)
			assert.Equal(t, tc.want, r.Needs, tc.reason)
			assert.Error(t, r.Err, tc.reason)
		})
	}
}

// A policy that cannot be evaluated follows its failure policy for the binds that it selects.
func TestBroken(t *testing.T) {
	final := errors.New("spec.x: wrong")
	for name, tc := range map[string]struct {
		spec   string
		reason error
		want   policy.Verdict
	}{
		"Fail":            {spec: validation("wrong"), reason: final, want: policy.Failed},
		"Ignore":          {spec: "failurePolicy: Ignore\n" + validation("wrong"), reason: final, want: policy.Ignored},
		"Pending":         {spec: validation("wrong"), reason: policy.ErrPreparing, want: policy.Waiting},
		"NotSelected":     {spec: "matchConstraints: {schedulerNames: [other]}\n" + validation("wrong"), reason: final, want: policy.NotMatched},
		"InvalidSelector": {spec: "matchConstraints: {podSelector: {matchExpressions: [{key: a, operator: Wrong}]}}\n" + validation("wrong"), reason: final, want: policy.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			c := policy.Broken(parseSpec(t, tc.spec), tc.reason)
			assert.Equal(t, tc.reason, c.Err())
			r, err := c.Evaluate(t.Context(), subject(), world())
			require.NoError(t, err)
			assert.Equal(t, tc.want, r.Verdict)
			if tc.want != policy.NotMatched {
				assert.ErrorIs(t, r.Err, tc.reason)
			}
		})
	}
}

// Data of tenants is limited: an expression cannot use an object that is too large.
func TestEvaluate_LargeObjects(t *testing.T) {
	text := strings.Repeat("x", policy.MaxObject)
	s := subject()
	s.Pod.Annotations = map[string]string{"a": text}
	s.Binding.Annotations = map[string]string{"a": text}
	for expression, want := range map[string]string{
		"pod.metadata.name == 'web'": "the pod is larger than 32 KiB", "object.metadata.name == 'web'": "the Binding is larger than 32 KiB", "node != null": "",
	} {
		r := evaluate(t, validation(expression), s, world())
		assert.Equal(t, want != "", r.Verdict == policy.Failed, r.Message)
		assert.Contains(t, r.Message, want)
	}
}

func TestEvaluate_Match(t *testing.T) {
	daemon := func(s *policy.Subject) {
		s.Pod.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "cni", Controller: new(true)}}
	}
	labeled := func(s *policy.Subject) { s.Pod.Labels = map[string]string{"app": "web"} }
	for name, tc := range map[string]struct {
		reason, match string
		change        func(s *policy.Subject)
		want          bool
		// differs is the selector that does not match.
		differs string
		reads   int
	}{
		"Pod":           {reason: "the labels match", match: "{podSelector: {matchLabels: {app: web}}}", change: labeled, want: true},
		"Node":          {reason: "the labels match", match: "{nodeSelector: {matchExpressions: [{key: nvidia.com/gpu.clique, operator: Exists}]}}", want: true},
		"Namespace":     {reason: "the labels match", match: "{namespaceSelector: {matchLabels: {team: ml}}}", want: true, reads: 1},
		"Cheap":         {reason: "the pod decides, so the namespace is not read", match: "{podSelector: {matchLabels: {app: db}}, namespaceSelector: {matchLabels: {team: ml}}}", differs: "podSelector"},
		"OtherNode":     {reason: "the labels differ", match: "{nodeSelector: {matchLabels: {a: b}}}", differs: "nodeSelector"},
		"OtherTeam":     {reason: "the labels differ", match: "{namespaceSelector: {matchLabels: {team: db}}}", differs: "namespaceSelector", reads: 1},
		"Scheduler":     {reason: "the name is in the list", match: "{schedulerNames: [a, volcano]}", change: func(s *policy.Subject) { s.Pod.Spec.SchedulerName = "volcano" }, want: true},
		"DaemonSet":     {reason: "agents must be able to start", match: "{}", change: daemon, differs: "includeDaemonSetPods"},
		"IncludeDaemon": {reason: "the policy includes them", match: "{includeDaemonSetPods: true}", change: daemon, want: true},
		"NotController": {reason: "the owner does not control the pod", match: "{}", want: true, change: func(s *policy.Subject) {
			s.Pod.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "cni"}}
		}},
		"All": {reason: "all selectors must match", match: "{podSelector: {matchLabels: {app: web}}, schedulerNames: [x]}", change: labeled, differs: "schedulerNames"},
	} {
		t.Run(name, func(t *testing.T) {
			s, o := subject(), world()
			if tc.change != nil {
				tc.change(s)
			}
			r := evaluate(t, "matchConstraints: "+tc.match+"\n"+validation("true"), s, o)
			assert.Equal(t, tc.want, r.Verdict == policy.Allowed, tc.reason)
			assert.Equal(t, tc.differs, strings.TrimPrefix(r.Rule, "spec.matchConstraints."), tc.reason)
			assert.Len(t, o.reads, tc.reads, tc.reason)
		})
	}
}

// The Namespace of a pod exists, so the cache is behind if it lacks it.
func TestEvaluate_UnknownNamespace(t *testing.T) {
	for _, spec := range []string{
		"matchConstraints: {namespaceSelector: {matchExpressions: [{key: a, operator: DoesNotExist}]}}\n" + validation("true"), validation("namespaceObject != null"),
	} {
		o := world()
		o.resources["namespaceObject"] = nil
		r := evaluate(t, spec, subject(), o)
		assert.Equal(t, policy.Waiting, r.Verdict)
		assert.Contains(t, r.Message, "the cache does not contain Namespace demo yet")
	}
}

// A generic ephemeral volume has the claim that belongs to the pod.
func TestEvaluate_EphemeralClaims(t *testing.T) {
	s := subject()
	s.Pod.UID = "u"
	s.Pod.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
	spec := validation("claims.scratch != null")
	for uid, want := range map[types.UID]policy.Verdict{"u": policy.Allowed, "other": policy.Rejected} {
		o := world()
		o.resources["claims"] = []client.Object{&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
			Namespace: "demo", Name: "web-scratch", OwnerReferences: []metav1.OwnerReference{{Kind: "Pod", Name: "web", UID: uid, Controller: new(true)}},
		}}}
		r := evaluate(t, spec, s, o)
		assert.Equal(t, want, r.Verdict, r.Message)
	}
}
