// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/config"
	"github.com/prebind/prebind/policy/v1alpha1"
)

// everyField is a policy that uses every field.
const everyField = `
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

// TestValidator_Rules checks all rules of the CustomResourceDefinition. Prebind must be able to decode a valid policy, because an error
// would end its watch of all policies.
func TestValidator_Rules(t *testing.T) {
	const (
		dnsLabel  = "the name must be a DNS label, because it is part of annotation keys"
		needsPart = "at least one of validations, waitFor, tasks and mutations is required"
		needsKeys = "annotations or labels are required"
		keyword   = "must not be a keyword of CEL"
		selectBy  = "nameExpression, labelSelector or onNode is required"
		nameOnly  = "nameExpression cannot be combined with labelSelector or onNode"
		namespace = "namespaceExpression cannot be combined with namespace"
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
		// want is part of the error. Empty means that the policy is valid.
		want string
	}{
		"every field":        {reason: "the documented policy", spec: everyField},
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
		"by labels":          {reason: "several objects", spec: resource("labelSelector: {}")},
		"on node":            {reason: "the objects on the node", spec: resource("onNode: true")},
		"all objects":        {reason: "a list of all objects is rarely intended", spec: resource("namespace: a"), want: selectBy},
		"not on node":        {reason: "false selects nothing", spec: resource("onNode: false"), want: selectBy},
		"name and labels":    {reason: "a name selects one object already", spec: resource("nameExpression: a, labelSelector: {}"), want: nameOnly},
		"name and node":      {reason: "a name selects one object already", spec: resource("nameExpression: a, onNode: true"), want: nameOnly},
		"name, not on node":  {reason: "false has no effect", spec: resource("nameExpression: a, onNode: false")},
		"namespace of list":  {reason: "the objects of a namespace", spec: resource("labelSelector: {}, namespaceExpression: a")},
		"nulls":              {reason: "the API server removes them", spec: with("resources: , matchConstraints: {podSelector: null}")},
		"namespace twice":    {reason: "they would contradict each other", spec: resource("nameExpression: a, namespace: a, namespaceExpression: a"), want: namespace},
		"resource keyword":   {reason: "no expression could use it", spec: with("resources: [{name: 'null', apiVersion: v1, kind: Pod, onNode: true}]"), want: keyword},
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
	v := sharedValidator()
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			object := map[string]any{}
			require.NoError(t, yaml.Unmarshal([]byte(tc.spec), &object))
			if tc.name == "" {
				tc.name = "test"
			}
			object["metadata"] = map[string]any{"name": tc.name}
			problems := v.validate(t.Context(), object)
			if tc.want != "" {
				assert.ErrorContains(t, problems.ToAggregate(), tc.want, tc.reason)
				return
			}
			require.Empty(t, problems, tc.reason)
			content, err := json.Marshal(object)
			require.NoError(t, err)
			assert.NoError(t, json.Unmarshal(content, &v1alpha1.BindPolicy{}))
		})
	}
	for _, message := range messagesOfRules(t) {
		assert.True(t, slices.Contains([]string{dnsLabel, needsPart, needsKeys, keyword, selectBy, nameOnly, namespace, bounds, reserved}, message),
			"no case covers the rule %q", message)
	}
}

// messagesOfRules returns the messages of all validation rules of the CustomResourceDefinition.
func messagesOfRules(t *testing.T) []string {
	t.Helper()
	crd, err := config.BindPolicyCRD()
	require.NoError(t, err)
	content, err := json.Marshal(crd)
	require.NoError(t, err)
	var definition any
	require.NoError(t, json.Unmarshal(content, &definition))
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
