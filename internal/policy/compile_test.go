// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"cmp"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	kinds "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
)

// spec of a policy with one validation.
func validation(expression string) string {
	return "validations: [{expression: " + quoted(expression) + "}]\n"
}

// quoted returns a string of YAML.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func parseSpec(t testing.TB, text string) *v1alpha1.BindPolicy {
	t.Helper()
	p := &v1alpha1.BindPolicy{}
	text = "metadata: {name: p, generation: 1, uid: u}\nspec:\n  " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ") + "\n"
	require.NoError(t, yaml.UnmarshalStrict([]byte(text), p))
	return p
}

func compile(t testing.TB, text string) *policy.Compiled {
	t.Helper()
	p := parseSpec(t, text)
	before := p.DeepCopy()
	c, err := policy.Compile(p, policy.Options{})
	require.NoError(t, err)
	assert.Equal(t, before, p, "the policy does not change")
	return c
}

const csiNode = "resources: [{name: csinode, apiVersion: storage.k8s.io/v1, kind: CSINode, nameExpression: node.metadata.name}]\n"

// manyNodes is a spec whose sixth expression has too many nodes together with the others.
var manyNodes = "validations:\n" + strings.Repeat("- expression: '["+strings.Repeat("1,", 4_000)+"1].size() > 0'\n", 6)

func TestCompile_Problems(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, spec, field, text string
		// because is the reason of the condition. Empty means CompileError.
		because string
	}{
		"Syntax":          {reason: "the expression is not CEL", spec: validation("pod."), field: "spec.validations[0].expression", text: "line 1, column 5: Syntax error"},
		"Kind":            {reason: "clients leave the kind empty", spec: validation("pod.kind == 'Pod'"), field: "spec.validations[0].expression", text: "undefined field 'kind'"},
		"Images":          {reason: "the cache does not keep images", spec: validation("size(node.status.images) > 0"), field: "spec.validations[0].expression", text: "undefined field 'images'"},
		"ManagedFields":   {reason: "the cache does not keep managedFields", spec: validation("has(pod.metadata.managedFields)"), field: "spec.validations[0].expression", text: "undefined field 'managedFields'"},
		"UnknownVariable": {reason: "there is no such variable", spec: validation("nodes == null"), field: "spec.validations[0].expression", text: "undeclared reference to 'nodes'"},
		"NoResource":      {reason: "the resource is not declared", spec: validation("resources.csinode != null"), field: "spec.validations[0].expression", text: "undefined field 'csinode'"},
		"ResourceField":   {reason: "built-in resources are typed", spec: csiNode + validation("resources.csinode.spec.driver == null"), field: "spec.validations[0].expression", text: "undefined field 'driver'"},
		"ListIsNoObject":  {reason: "without a name, the resource is a list", spec: "resources: [{name: a, apiVersion: v1, kind: Pod, onNode: true}]\n" + validation("resources.a.spec != null"), field: "spec.validations[0].expression", text: "does not support field selection"},
		"ClaimField":      {reason: "claims are typed", spec: validation("claims.all(v, claims[v].spec.volume == '')"), field: "spec.validations[0].expression", text: "undefined field 'volume'"},
		"RequestField":    {reason: "the request is typed", spec: validation("request.user == ''"), field: "spec.validations[0].expression", text: "undefined field 'user'"},
		"NotABool":        {reason: "a validation returns a bool", spec: validation("pod.metadata.name"), field: "spec.validations[0].expression", text: "must return bool, but returns string"},
		"MatchNotABool":   {reason: "a condition returns a bool", spec: "matchConditions: [{name: a, expression: '1'}]\n" + validation("true"), field: "spec.matchConditions[0].expression", text: "must return bool, but returns int"},
		"WaitNotABool":    {reason: "a wait returns a bool", spec: "waitFor: [{name: a, expression: '1'}]", field: "spec.waitFor[0].expression", text: "must return bool, but returns int"},
		"MessageNoString": {reason: "a message is a string", spec: "validations: [{expression: 'true', messageExpression: '1'}]", field: "spec.validations[0].messageExpression", text: "must return string, but returns int"},
		"NameNoString":    {reason: "a name is a string", spec: "resources: [{name: a, apiVersion: v1, kind: Node, nameExpression: '1'}]\n" + validation("true"), field: "spec.resources[0].nameExpression", text: "must return string, but returns int"},
		"ValueNoString":   {reason: "an annotation is a string", spec: "mutations: {annotations: [{key: a, valueExpression: '1'}]}", field: "spec.mutations.annotations[0].valueExpression", text: "must return string, null or optional string, but returns int"},
		"LaterVariable":   {reason: "a variable uses only those before it", spec: "variables: [{name: a, expression: variables.b}, {name: b, expression: '1'}]\n" + validation("true"), field: "spec.variables[0].expression", text: "undefined field 'b'"},
		"VariableType":    {reason: "variables are typed", spec: "variables: [{name: a, expression: '1'}]\n" + validation("variables.a == 'x'"), field: "spec.validations[0].expression", text: "no matching overload"},
		"Repetitions":     {reason: "the program has an instruction for each repetition", spec: validation("pod.metadata.name.find('(.?.?.?.?){500}X') == ''"), field: "spec.validations[0].expression", text: "instructions; at most 1000"},
		"Repetition":      {reason: "the program has an instruction for each repetition", spec: validation("pod.metadata.name.matches('[a-z]{1,900}X')"), field: "spec.validations[0].expression", text: "instructions; at most 1000"},
		"NestedMacros":    {reason: "each macro uses the value before it twice", spec: validation("optional.of(1)" + strings.Repeat(".optMap(x, x)", 12) + ".hasValue()"), field: "spec.validations[0].expression", text: "nodes after its macros are expanded"},
		"LongExpression":  {reason: "a policy that does not come from the API server is limited, too", spec: validation("'" + strings.Repeat("a", 8_192) + "' == ''"), field: "spec.validations[0].expression", text: "size exceeds limit"},
		"ManyNodes":       {reason: "so is the sum of its expressions", spec: manyNodes, field: "spec.validations[5].expression", text: "more than 20000 nodes"},
		"ManyItems":       {reason: "so is a list", spec: "validations:\n" + strings.Repeat("- expression: 'true'\n", 65), field: "spec", text: "at most 64 are allowed"},
		"ManyParameters":  {reason: "so are parameters", spec: "tasks: [{name: a, handler: b/c, parameters: [" + strings.Repeat("{key: a, valueExpression: \"'b'\"}, ", 65) + "]}]", field: "spec", text: "at most 64 are allowed"},
		"NameOfResource":  {reason: "the name of a resource cannot depend on resources", spec: "resources: [{name: a, apiVersion: v1, kind: Pod, namespace: x, nameExpression: resources.a.metadata.name}]\n" + validation("true"), field: "spec.resources[0].nameExpression", text: "cannot use resources"},
		"Scope":           {reason: "the object is never found", spec: "resources: [{name: a, apiVersion: v1, kind: ConfigMap, nameExpression: \"'a'\"}]\n" + validation("resources.a != null"), field: "spec.resources[0]", text: "the kind ConfigMap is namespaced; add namespace"},
		"OnNode":          {reason: "CSINodes have no spec.nodeName", spec: "resources: [{name: a, apiVersion: storage.k8s.io/v1, kind: CSINode, onNode: true}]\n" + validation("true"), field: "spec.resources[0].onNode", text: "no field spec.nodeName"},
		"APIVersion":      {reason: "an apiVersion has one slash", spec: "resources: [{name: a, apiVersion: a/b/c, kind: Pod, onNode: true}]\n" + validation("true"), field: "spec.resources[0].apiVersion", text: "unexpected GroupVersion"},
		"BadSelector":     {reason: "the operator does not exist", spec: "matchConstraints: {podSelector: {matchExpressions: [{key: a, operator: Like}]}}\n" + validation("true"), field: "spec.matchConstraints.podSelector", text: "not a valid label selector operator"},
		"DeepExpression":  {reason: "the parser limits the depth", spec: validation(strings.Repeat("[", 500) + strings.Repeat("]", 500) + " == []"), field: "spec.validations[0].expression", text: "recursion limit"},
		"KubernetesKey": {
			reason: "these keys have a meaning for Kubernetes", spec: "mutations: {labels: [{key: topology.kubernetes.io/zone, valueExpression: \"'a'\"}]}",
			field: "spec.mutations.labels[0].key", text: "reserved", because: v1alpha1.ReasonKeyNotAllowed,
		},
		"OtherKey": {
			reason: "the operator must allow it", spec: "mutations: {labels: [{key: ray.io/a, valueExpression: \"'a'\"}]}",
			field: "spec.mutations.labels[0].key", text: "--policy-key-prefixes", because: v1alpha1.ReasonKeyNotAllowed,
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := policy.Compile(parseSpec(t, tc.spec), policy.Options{})
			require.Error(t, err, tc.reason)
			p := policy.Problems(err)[0]
			assert.Equal(t, tc.field, p.Field, tc.reason)
			assert.Contains(t, p.Message, tc.text, tc.reason)
			assert.NotContains(t, p.Message, "\n", "a condition has one line")
			assert.Equal(t, cmp.Or(tc.because, v1alpha1.ReasonCompileError), p.Reason, tc.reason)
		})
	}
}

func TestCompile_Keys(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, key, want string
		allowed           []string
	}{
		"Own":             {reason: "the own prefix may be written", key: "p.policy.prebind.dev/clique", want: "p.policy.prebind.dev/clique"},
		"OtherPolicy":     {reason: "the prefix belongs to another policy", key: "q.policy.prebind.dev/clique", allowed: []string{"q.policy.prebind.dev"}},
		"Prebind":         {reason: "the prefix belongs to Prebind", key: "binder.prebind.dev/skip", allowed: []string{"*.prebind.dev", "binder.prebind.dev"}},
		"Allowed":         {reason: "the operator allows the prefix", key: "ray.io/a", allowed: []string{"x.io", "ray.io"}, want: "ray.io/a"},
		"NotSubdomain":    {reason: "a prefix does not include subdomains", key: "a.ray.io/a", allowed: []string{"ray.io"}},
		"Subdomain":       {reason: "the wildcard includes subdomains", key: "a.b.ray.io/a", allowed: []string{"*.ray.io"}, want: "a.b.ray.io/a"},
		"Suffix":          {reason: "a domain is not a suffix", key: "xray.io/a", allowed: []string{"*.ray.io", "ray.io"}},
		"EmptyWildcard":   {reason: "not everything can be allowed", key: "ray.io/a", allowed: []string{"*.", "*", ""}},
		"Kubernetes":      {reason: "never allowed", key: "kubernetes.io/a", allowed: []string{"kubernetes.io", "*.io"}},
		"NotKubernetes":   {reason: "another domain", key: "notkubernetes.io/a", allowed: []string{"notkubernetes.io"}, want: "notkubernetes.io/a"},
		"InvalidName":     {reason: "not a valid key", key: "a b"},
		"EmptyPrefix":     {reason: "not a valid key", key: "/a"},
		"UpperCasePrefix": {reason: "prefixes are lower case, so that no other spelling of a reserved one exists", key: "Kubernetes.io/a", allowed: []string{"Kubernetes.io"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := parseSpec(t, "mutations: {annotations: [{key: x, valueExpression: \"'v'\"}]}")
			p.Spec.Mutations.Annotations[0].Key = tc.key
			c, err := policy.Compile(p, policy.Options{KeyPrefixes: tc.allowed})
			if tc.want == "" {
				assert.Error(t, err, tc.reason)
				return
			}
			require.NoError(t, err, tc.reason)
			r, err := c.Evaluate(t.Context(), subject(), &objects{})
			require.NoError(t, err)
			assert.Equal(t, map[string]string{tc.want: "v"}, r.Annotations, tc.reason)
		})
	}
}

// schemas are Schemas in memory.
type schemas map[string]*spec.Schema

func (s schemas) ResolveSchema(kind kinds.GroupVersionKind) (*spec.Schema, error) {
	if found, ok := s[kind.Kind]; ok {
		return found, nil
	}
	return nil, errors.New("not found")
}

func object(properties map[string]spec.Schema) *spec.Schema {
	return &spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}, Properties: properties}}
}

// widget is the schema of a custom resource.
func widget() *spec.Schema {
	open := object(nil)
	open.AddExtension("x-kubernetes-preserve-unknown-fields", true)
	either := &spec.Schema{}
	either.AddExtension("x-kubernetes-int-or-string", true)
	return object(map[string]spec.Schema{
		"metadata": *object(nil),
		"spec": *object(map[string]spec.Schema{
			"size":   *spec.Int32Property(),
			"ratio":  *spec.Float64Property(),
			"at":     *spec.DateTimeProperty(),
			"names":  *spec.ArrayProperty(spec.StringProperty()),
			"limits": *spec.MapProperty(spec.StringProperty()),
			"open":   *open,
			"port":   *either,
			"on":     *spec.BooleanProperty(),
		}),
	})
}

func TestCompile_Warnings(t *testing.T) {
	const widgets = "resources: [{name: w, apiVersion: example.com/v1, kind: Widget, nameExpression: node.metadata.name}, {name: o, apiVersion: example.com/v1, kind: Other, labelSelector: {}}]\n"
	for name, tc := range map[string]struct {
		reason, spec, field, text string
	}{
		"Unknown":     {reason: "the field does not exist", spec: validation("resources.w.spec.sise > 1"), field: "spec.validations[0].expression", text: "undefined field 'sise'"},
		"NoSchema":    {reason: "the schema is unknown", spec: validation("resources.o.all(x, x.foo == 1)")},
		"Type":        {reason: "a list has no field", spec: validation("resources.w.spec.names == 'a'"), field: "spec.validations[0].expression", text: "no matching overload"},
		"Result":      {reason: "the result is a number", spec: validation("resources.w.spec.size"), field: "spec.validations[0].expression", text: "must return bool, but returns int"},
		"Time":        {reason: "times of unstructured objects are strings", spec: validation("timestamp(resources.w.spec.at) < timestamp('2026-01-01T00:00:00Z') && resources.w.spec.at.startsWith('2')")},
		"Metadata":    {reason: "metadata has its usual fields", spec: validation("resources.w.metadata.labels['a'] == 'b' && resources.w.kind == 'Widget'")},
		"MetaUnknown": {reason: "metadata has only its usual fields", spec: validation("resources.w.metadata.foo == 'b'"), field: "spec.validations[0].expression", text: "undefined field 'foo'"},
		"Open":        {reason: "any field may exist", spec: validation("resources.w.spec.open.a.b == 1")},
		"IntOrString": {reason: "both types are possible", spec: validation("resources.w.spec.port == 1 || resources.w.spec.port == 'a'")},
		"Map":         {reason: "any key may exist", spec: validation("resources.w.spec.limits['cpu'] == '1'")},
		"Variable":    {reason: "the type of a variable follows", spec: "variables: [{name: s, expression: resources.w.spec}]\n" + validation("variables.s.foo == 1"), field: "spec.validations[0].expression", text: "undefined field 'foo'"},
		"InVariable":  {reason: "a warning is not repeated", spec: "variables: [{name: s, expression: resources.w.foo}]\n" + validation("variables.s.foo == 1"), field: "spec.variables[0].expression", text: "undefined field 'foo'"},
		"Task":        {reason: "the wait and the task time out at the same time", spec: "waitFor: [{name: a, expression: 'true', onTimeout: Allow}]\ntasks: [{name: t, handler: a.com/b}]", field: "spec.tasks[0].timeout", text: "2m0s is not longer than that of waitFor[a]"},
		"LongTask":    {reason: "the task has a minute", spec: "waitFor: [{name: a, expression: 'true', onTimeout: Allow}]\ntasks: [{name: t, handler: a.com/b, timeout: 3m}]"},
		"Message":     {reason: "messages are checked", spec: "validations: [{expression: 'true', messageExpression: resources.w.spec.size}]", field: "spec.validations[0].messageExpression", text: "must return string"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := policy.Compile(parseSpec(t, widgets+tc.spec), policy.Options{Schemas: schemas{"Widget": widget()}})
			require.NoError(t, err, "a warning does not prevent the use: %s", tc.reason)
			if tc.field == "" {
				assert.Empty(t, c.Warnings(), tc.reason)
				return
			}
			require.Len(t, c.Warnings(), 1, tc.reason)
			assert.Equal(t, tc.field, c.Warnings()[0].FieldRef, tc.reason)
			assert.Contains(t, c.Warnings()[0].Warning, tc.text, tc.reason)
		})
	}
}
