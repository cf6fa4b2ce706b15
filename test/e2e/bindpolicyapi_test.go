// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/policy/v1alpha1"
)

// policyComponent is the component of the plugin policy.
const policyComponent = "../../config/webhook/plugins/policy/"

// policyAPI is a control plane with the CustomResourceDefinition of BindPolicies.
type policyAPI struct {
	*world
	client client.Client
}

// Tests of the API and of the permissions of BindPolicies. They use the shared control plane, whose installation does not
// have the plugin. No BindPolicy matches a pod there.
func TestBindPolicyAPI(t *testing.T) {
	t.Parallel()
	a := &policyAPI{world: shared}
	// A replica that starts during the test has the plugin on.
	for _, file := range []string{"role.yaml", "rolebinding.yaml", "crd.yaml"} {
		a.apply(t, file)
	}
	a.connect(t)
	for name, test := range map[string]func(*testing.T, *policyAPI){
		"validation": testPolicyValidation, "defaults": testPolicyDefaults, "status": testPolicyStatus, "explain": testPolicyExplained,
	} {
		t.Run(name, func(t *testing.T) { test(t, a) })
	}
}

// connect creates the client when the API server serves BindPolicies.
func (a *policyAPI) connect(t *testing.T) {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var err error
		a.client, err = client.New(a.cluster.Config(), client.Options{Scheme: scheme})
		require.NoError(c, err)
		assert.NoError(c, a.client.List(t.Context(), &v1alpha1.BindPolicyList{}))
	}, patience, 50*time.Millisecond, "the API server should serve BindPolicies")
}

// apply applies a file of the component with server-side apply, and deletes its objects after the test.
func (w *world) apply(t *testing.T, file string) {
	t.Helper()
	out, err := w.cluster.Kubectl(t.Context(), "apply", "--server-side", "-f", policyComponent+file).CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Cleanup(func() {
		out, err := w.cluster.Kubectl(context.WithoutCancel(t.Context()), "delete", "-f", policyComponent+file).CombinedOutput()
		assert.NoError(t, err, "%s", out)
	})
}

// dryRun posts a BindPolicy as a dry run. The spec is YAML. Prebind must be able to decode the result, because an error would
// end its watch of all policies.
func (a *policyAPI) dryRun(t *testing.T, name, spec string) error {
	t.Helper()
	o := &unstructured.Unstructured{}
	require.NoError(t, yaml.Unmarshal([]byte(spec), &o.Object), "%s", spec)
	if o.Object == nil {
		o.Object = map[string]any{}
	}
	o.SetGroupVersionKind(v1alpha1.Kind)
	o.SetName(name)
	if err := a.client.Create(t.Context(), o, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict)); err != nil {
		return err
	}
	content, err := o.MarshalJSON()
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(content, &v1alpha1.BindPolicy{}))
	return nil
}

// wish is a policy that uses every field.
const wish = `
spec:
  matchConstraints:
    namespaceSelector: {matchLabels: {team: ml}}
    podSelector: {}
    nodeSelector: {matchExpressions: [{key: pool, operator: In, values: [a, b]}]}
    schedulerNames: [default-scheduler, volcano]
    includeDaemonSetPods: true
  matchConditions: [{name: example.com/gpu, expression: "'nvidia.com/gpu' in node.status.allocatable"}]
  resources:
  - {name: csinode, apiVersion: storage.k8s.io/v1, kind: CSINode, nameExpression: node.metadata.name}
  - {name: config, apiVersion: v1, kind: ConfigMap, nameExpression: "'config'", namespaceExpression: pod.metadata.namespace}
  - {name: agents, apiVersion: v1, kind: Pod, namespace: kube-system, labelSelector: {matchLabels: {app: cni}}, onNode: true}
  variables: [{name: clique, expression: "node.metadata.labels[?'nvidia.com/gpu.clique'].orValue('')"}]
  validations:
  - {expression: "variables.clique != ''", message: no clique, messageExpression: "'node ' + node.metadata.name + ' has no clique'"}
  waitFor:
  - {name: driver, expression: "resources.csinode != null", message: not registered, messageExpression: "'not registered'", timeout: 1m30s, onTimeout: Allow}
  mutations:
    annotations: [{key: clique, valueExpression: variables.clique}, {key: ray.io/clique, valueExpression: variables.clique}]
    labels: [{key: clique, valueExpression: variables.clique}]
  failurePolicy: Ignore
  mode: Audit
`

// The first apply proves that the API server accepts the cost of the rules.
func testPolicyValidation(t *testing.T, a *policyAPI) {
	const (
		dnsLabel  = "the name must be a DNS label, because it is part of annotation keys"
		needsPart = "at least one of validations, waitFor and mutations is required"
		needsKeys = "annotations or labels are required"
		keyword   = "must not be a keyword of CEL"
		selectBy  = "nameExpression, labelSelector or onNode is required"
		nameOnly  = "nameExpression cannot be combined with labelSelector or onNode"
		namespace = "namespaceExpression requires nameExpression and cannot be combined with namespace"
		bounds    = "must be between 1s and 24h"
		reserved  = "keys of kubernetes.io, k8s.io and prebind.dev are not allowed; omit the prefix for a key of the policy"
	)
	validations := "spec: {validations: [{expression: 'true'}]%s}"
	with := func(field string) string { return strings.Replace(validations, "%s", ", "+field, 1) }
	resource := func(fields string) string {
		return with("resources: [{name: a, apiVersion: v1, kind: Pod, " + fields + "}]")
	}
	wait := func(fields string) string { return "spec: {waitFor: [{name: a, expression: 'true', " + fields + "}]}" }
	key := func(key string) string {
		return "spec: {mutations: {annotations: [{key: '" + key + "', valueExpression: 'null'}]}}"
	}
	long := strings.Repeat("a", 64)

	cases := map[string]struct {
		reason, name, spec string
		// want is part of the error. Empty means that the API server accepts the policy.
		want string
	}{
		"every field":        {reason: "the documented policy", spec: wish},
		"only validations":   {reason: "a policy can only reject", spec: with("mode: Enforce")},
		"no spec":            {reason: "an empty policy is a mistake", spec: "{}", want: "spec: Required value"},
		"empty spec":         {reason: "a policy without effect is a mistake", spec: "spec: {}", want: needsPart},
		"only conditions":    {reason: "conditions alone have no effect", spec: "spec: {matchConditions: [{name: a, expression: 'true'}]}", want: needsPart},
		"empty mutations":    {reason: "mutations without keys have no effect", spec: "spec: {mutations: {}}", want: needsKeys},
		"name":               {reason: "63 characters fit into a label", name: strings.Repeat("a", 63), spec: with("mode: Audit")},
		"name with dots":     {reason: "the domain of its keys would have more parts", name: "a.b", spec: with("mode: Audit"), want: dnsLabel},
		"long name":          {reason: "the domain of its keys would not be valid", name: long, spec: with("mode: Audit"), want: dnsLabel},
		"variable keyword":   {reason: "no expression could use it", spec: with("variables: [{name: in, expression: 'true'}]"), want: keyword},
		"shortest timeout":   {reason: "the lower bound", spec: wait("timeout: 1s")},
		"longest timeout":    {reason: "the upper bound", spec: wait("timeout: 23h59m60s")},
		"short timeout":      {reason: "under the lower bound", spec: wait("timeout: 999ms"), want: bounds},
		"long timeout":       {reason: "over the upper bound", spec: wait("timeout: 24h1s"), want: bounds},
		"by name":            {reason: "one object", spec: resource("nameExpression: node.metadata.name")},
		"by labels":          {reason: "several objects", spec: resource("labelSelector: {}")},
		"on node":            {reason: "the objects on the node", spec: resource("onNode: true")},
		"all objects":        {reason: "a list of all objects is rarely intended", spec: resource("namespace: a"), want: selectBy},
		"not on node":        {reason: "false selects nothing", spec: resource("onNode: false"), want: selectBy},
		"name and labels":    {reason: "a name selects one object already", spec: resource("nameExpression: a, labelSelector: {}"), want: nameOnly},
		"name and node":      {reason: "a name selects one object already", spec: resource("nameExpression: a, onNode: true"), want: nameOnly},
		"name, not on node":  {reason: "false has no effect", spec: resource("nameExpression: a, onNode: false")},
		"namespace by name":  {reason: "only an object by name has one namespace", spec: resource("labelSelector: {}, namespaceExpression: a"), want: namespace},
		"namespace twice":    {reason: "they would contradict each other", spec: resource("nameExpression: a, namespace: a, namespaceExpression: a"), want: namespace},
		"resource keyword":   {reason: "no expression could use it", spec: with("resources: [{name: 'null', apiVersion: v1, kind: Pod, onNode: true}]"), want: keyword},
		"key":                {reason: "a key of the policy", spec: key("Clique.of_a-1")},
		"foreign key":        {reason: "the operator decides about other prefixes", spec: key("ray.io/clique")},
		"similar key":        {reason: "the prefix belongs to somebody else", spec: key("notkubernetes.io/a")},
		"name like a domain": {reason: "without a slash, it is not a prefix", spec: key("kubernetes.io")},
		"kubernetes.io":      {reason: "Kubernetes gives these keys a meaning", spec: key("kubernetes.io/a"), want: reserved},
		"below kubernetes":   {reason: "Kubernetes gives these keys a meaning", spec: key("node-restriction.kubernetes.io/a"), want: reserved},
		"k8s.io":             {reason: "Kubernetes gives these keys a meaning", spec: key("k8s.io/a"), want: reserved},
		"prebind.dev":        {reason: "plugins give these keys a meaning", spec: key("device.prebind.dev/name"), want: reserved},
		"own prefix":         {reason: "a key must have one spelling", spec: key("test.policy.prebind.dev/a"), want: reserved},
		"label key":          {reason: "the rule also covers labels", spec: "spec: {mutations: {labels: [{key: k8s.io/a, valueExpression: 'null'}]}}", want: reserved},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if tc.name == "" {
				tc.name = "test"
			}
			err := a.dryRun(t, tc.name, tc.spec)
			if tc.want == "" {
				assert.NoError(t, err, tc.reason)
			} else {
				assert.ErrorContains(t, err, tc.want, tc.reason)
			}
		})
	}
	for _, message := range messagesOfRules(t) {
		assert.True(t, slices.ContainsFunc([]string{dnsLabel, needsPart, needsKeys, keyword, selectBy, nameOnly, namespace, bounds, reserved}, func(m string) bool { return m == message }),
			"no case covers the rule %q", message)
	}
}

// messagesOfRules returns the messages of all validation rules of the CustomResourceDefinition.
func messagesOfRules(t *testing.T) []string {
	t.Helper()
	content, err := os.ReadFile(policyComponent + "crd.yaml")
	require.NoError(t, err)
	var definition any
	require.NoError(t, yaml.Unmarshal(content, &definition))
	var messages []string
	var visit func(v any)
	visit = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, item := range v {
				visit(item)
			}
		case map[string]any:
			if rule, ok := v["rule"].(string); ok {
				message, ok := v["message"].(string)
				require.True(t, ok, "the rule %q has no message", rule)
				messages = append(messages, message)
			}
			for _, below := range v {
				visit(below)
			}
		}
	}
	visit(definition)
	require.NotEmpty(t, messages)
	return messages
}

func testPolicyDefaults(t *testing.T, a *policyAPI) {
	p := &v1alpha1.BindPolicy{ObjectMeta: metav1.ObjectMeta{Name: "defaults"}, Spec: v1alpha1.BindPolicySpec{
		WaitFor: []v1alpha1.Wait{{Name: "a", Expression: "true"}},
	}}
	want := p.DeepCopy()
	v1alpha1.SetDefaults(want)
	require.NoError(t, a.client.Create(t.Context(), p, client.DryRunAll))
	assert.Equal(t, want.Spec, p.Spec, "SetDefaults sets the same defaults as the API server")
}

// The status is a subresource, kubectl shows it, and only changes of the spec are generations.
func testPolicyStatus(t *testing.T, a *policyAPI) {
	p := &v1alpha1.BindPolicy{ObjectMeta: metav1.ObjectMeta{Name: "status"}, Spec: v1alpha1.BindPolicySpec{
		MatchConstraints: v1alpha1.MatchConstraints{SchedulerNames: []string{"none"}},
		Validations:      []v1alpha1.Validation{{Expression: "true"}},
		Mode:             v1alpha1.ModeAudit,
	}}
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonForbidden, Message: "no permission", ObservedGeneration: 1}
	meta.SetStatusCondition(&p.Status.Conditions, ready)
	require.NoError(t, a.client.Create(t.Context(), p))
	assert.Empty(t, p.Status, "a user cannot set the status of a new policy")

	meta.SetStatusCondition(&p.Status.Conditions, ready)
	p.Status.ObservedGeneration = p.Generation
	p.Status.TypeChecking = &v1alpha1.TypeChecking{ExpressionWarnings: []v1alpha1.ExpressionWarning{{FieldRef: "spec.validations[0].expression", Warning: "a"}}}
	p.Spec.Mode = v1alpha1.ModeEnforce
	require.NoError(t, a.client.Status().Update(t.Context(), p))
	require.NoError(t, a.client.Get(t.Context(), client.ObjectKeyFromObject(p), p))
	assert.Equal(t, v1alpha1.ModeAudit, p.Spec.Mode, "an update of the status does not change the spec")
	assert.EqualValues(t, 1, p.Generation)
	assert.EqualValues(t, 1, p.Status.ObservedGeneration)
	assert.Equal(t, "a", p.Status.TypeChecking.ExpressionWarnings[0].Warning)

	changed := p.DeepCopy()
	changed.Spec.Validations[0].Expression = "false"
	changed.Status = v1alpha1.BindPolicyStatus{}
	require.NoError(t, a.client.Update(t.Context(), changed))
	assert.EqualValues(t, 2, changed.Generation)
	assert.Equal(t, p.Status, changed.Status, "an update of the spec does not change the status")

	content, err := a.world.client.CoreV1().RESTClient().Get().AbsPath("/apis/policy.prebind.dev/v1alpha1/bindpolicies").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context())
	require.NoError(t, err)
	var table metav1.Table
	require.NoError(t, json.Unmarshal(content, &table))
	var columns []string
	for _, c := range table.ColumnDefinitions {
		columns = append(columns, c.Name)
	}
	assert.Equal(t, []string{"Name", "Ready", "Reason", "Mode", "Age"}, columns)
	require.Len(t, table.Rows, 1)
	assert.Equal(t, []any{"status", "False", "Forbidden", "Audit"}, table.Rows[0].Cells[:4])

	out, err := a.cluster.Kubectl(t.Context(), "get", "bp", "status", "--no-headers").Output()
	require.NoError(t, err)
	assert.Equal(t, []string{"status", "False", "Forbidden", "Audit"}, strings.Fields(string(out))[:4], "the short name is bp")
}

func testPolicyExplained(t *testing.T, a *policyAPI) {
	out, err := a.cluster.Kubectl(t.Context(), "explain", "bindpolicy.spec.waitFor.timeout").Output()
	require.NoError(t, err)
	assert.Contains(t, string(out), "Timeout limits the wait")
}
