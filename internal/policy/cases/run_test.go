// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cases_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/internal/policy/cases"
)

const header = "apiVersion: policy.prebind.dev/v1alpha1\nkind: BindPolicyTest\n"

// write writes files into a new directory.
func write(t *testing.T, contents map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range contents {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	return dir
}

// policyOf returns a policy with the spec.
func policyOf(name, spec string) string {
	return "apiVersion: policy.prebind.dev/v1alpha1\nkind: BindPolicy\nmetadata: {name: " + name + "}\nspec:\n  " + strings.ReplaceAll(spec, "\n", "\n  ") + "\n"
}

// objects are those of most tests.
const objects = `objects:
- {apiVersion: v1, kind: Node, metadata: {name: n1, labels: {rack: r1}}}
- {apiVersion: v1, kind: Pod, metadata: {name: a, labels: {app: web}}}
`

// runOne runs one case with one policy.
func runOne(t *testing.T, spec, content string) *cases.Result {
	t.Helper()
	dir := write(t, map[string]string{"policy.yaml": policyOf("p", spec), "p_test.yaml": header + content})
	r, err := cases.Run(t.Context(), dir)
	require.NoError(t, err)
	return r
}

// passes requires that the run has this number of cases, and that all pass.
func passes(t *testing.T, r *cases.Result, n int, reason string) {
	t.Helper()
	require.NoError(t, r.Err)
	require.Len(t, r.Cases, n)
	for _, c := range r.Cases {
		assert.Empty(t, c.Failures, "%s: %s", c.Name, reason)
	}
}

func TestRun_Objects(t *testing.T) {
	missing := func(resource string) string {
		if strings.Contains(resource, "nameExpression") {
			return `validations: [{expression: "resources.x == null", message: found}]`
		}
		return `validations: [{expression: "size(resources.x) == 0", message: found}]`
	}
	agent := "- {apiVersion: v1, kind: Pod, metadata: {name: agent, namespace: sys, labels: {app: cni}}, spec: {nodeName: n1}}\n"
	for name, tc := range map[string]struct {
		reason, resource, objects string
		found                     bool
	}{
		"OtherNode": {reason: "a pod on another node is not", resource: "onNode: true", objects: strings.Replace(agent, "n1", "n2", 1)},
		"Namespace": {reason: "the namespace must match", resource: "onNode: true, namespace: sys", objects: agent, found: true},
		"Name":      {reason: "one object is found by its name and namespace", resource: "nameExpression: \"'agent'\", namespace: sys", objects: agent, found: true},
		"OtherName": {reason: "the name must match", resource: "nameExpression: node.metadata.name, namespace: sys", objects: agent},
	} {
		t.Run(name, func(t *testing.T) {
			verdict := "allowed"
			if tc.found {
				verdict = "rejected"
			}
			r := runOne(t, "resources: [{name: x, apiVersion: v1, kind: Pod, "+tc.resource+"}]\n"+missing(tc.resource),
				objects+tc.objects+"cases: [{name: c, pod: a, expect: [{verdict: "+verdict+"}]}]\n")
			passes(t, r, 1, tc.reason)
		})
	}
}

// Prebind watches the pod and the node of the bind, too.
func TestRun_OwnObjects(t *testing.T) {
	r := runOne(t, `resources:
- {name: pods, apiVersion: v1, kind: Pod, namespaceExpression: pod.metadata.namespace, labelSelector: {matchLabels: {app: web}}}
- {name: node, apiVersion: v1, kind: Node, nameExpression: node.metadata.name}
validations: [{expression: "resources.pods.size() == 1 && resources.node.metadata.name == 'n1'"}]`, objects+`- {apiVersion: v1, kind: Pod, metadata: {name: b, namespace: other, labels: {app: web}}}
cases: [{name: c, pod: a, expect: [{verdict: allowed}]}]
`)
	passes(t, r, 1, "a list with namespaceExpression has the objects of one namespace")
}

func TestRun_DefaultNamespace(t *testing.T) {
	r := runOne(t, `resources: [{name: x, apiVersion: v1, kind: ConfigMap, nameExpression: "'limits'", namespaceExpression: pod.metadata.namespace}]
validations: [{expression: resources.x != null}]`, objects+`- {apiVersion: v1, kind: ConfigMap, metadata: {name: limits}}
cases: [{name: c, expect: [{verdict: allowed}]}]
`)
	passes(t, r, 1, "objects of namespaced kinds are in the namespace default")
}

func TestRun_CustomResources(t *testing.T) {
	spec := "resources: [{name: x, apiVersion: example.com/v1, kind: Rack, nameExpression: \"node.metadata.labels['rack']\"}]\n" +
		`waitFor: [{name: ready, expression: "resources.x.status.ready", message: rack not ready, timeout: 3m}]`
	r := runOne(t, spec, objects+`- {apiVersion: example.com/v1, kind: Rack, metadata: {name: r1}, status: {ready: true}}
cases:
- {name: ready, expect: [{verdict: allowed}]}
- name: merged
  objects: [{apiVersion: example.com/v1, kind: Rack, metadata: {name: r1}, status: {ready: false}}]
  expect: [{verdict: waiting, message: rack not ready, rule: "spec.waitFor[ready]"}]
- name: timed out
  waited: 3m
  objects: [{apiVersion: example.com/v1, kind: Rack, metadata: {name: r1}, status: {ready: false}}]
  expect: [{verdict: timed-out}]
- name: removed
  objects: [{apiVersion: example.com/v1, kind: Rack, metadata: {name: r1}, status: null}]
  expect: [{verdict: failed}]
`)
	passes(t, r, 4, "objects of a case are merged with those of the test")
	assert.Empty(t, r.Uncovered())
}

func TestRun_Bind(t *testing.T) {
	spec := `mutations:
  annotations:
  - {key: user, valueExpression: request.userInfo.username}
  - {key: dry, valueExpression: string(request.dryRun)}
  - {key: binding, valueExpression: "object.metadata.?annotations['a'].orValue('none')"}
  - {key: namespace, valueExpression: "namespaceObject.metadata.labels['kubernetes.io/metadata.name']"}
  - {key: target, valueExpression: object.target.name}`
	r := runOne(t, spec, objects+`- {apiVersion: v1, kind: Node, metadata: {name: n2}}
- {apiVersion: v1, kind: Pod, metadata: {name: a, namespace: other}}
- {apiVersion: v1, kind: Pod, metadata: {name: bound, namespace: other}, spec: {nodeName: n1}}
cases:
- name: defaults
  pod: a
  node: n1
  expect:
  - verdict: allowed
    annotations:
      p.policy.prebind.dev/user: system:kube-scheduler
      p.policy.prebind.dev/dry: "false"
      p.policy.prebind.dev/binding: none
      p.policy.prebind.dev/namespace: default
      p.policy.prebind.dev/target: n1
    labels: {}
- name: all
  pod: other/a
  node: n2
  dryRun: true
  user: {username: volcano}
  binding: {annotations: {a: b}}
  expect:
  - verdict: allowed
    annotations:
      p.policy.prebind.dev/user: volcano
      p.policy.prebind.dev/dry: "true"
      p.policy.prebind.dev/binding: b
      p.policy.prebind.dev/namespace: other
      p.policy.prebind.dev/target: n2
- {name: several pods, node: n1, expect: [{verdict: allowed}]}
- {name: several nodes, pod: a, expect: [{verdict: allowed}]}
- {name: no such pod, pod: x, node: n1, expect: [{verdict: allowed}]}
`)
	require.Len(t, r.Cases, 2)
	for _, c := range r.Cases {
		assert.Empty(t, c.Failures, c.Name)
	}
	require.ErrorContains(t, r.Err, `case "several pods": pod: required, because objects contain several: Pod default/a and Pod other/a`, "a bound pod is not the pod of a bind")
	require.ErrorContains(t, r.Err, `case "several nodes": node: required, because objects contain several: Node n1 and Node n2`)
	require.ErrorContains(t, r.Err, `case "no such pod": pod: objects contain no Pod default/x`)
}

func TestRun_Several(t *testing.T) {
	dir := write(t, map[string]string{
		"b.yaml":    policyOf("b", `validations: [{expression: "false", message: never}]`) + "---\n" + policyOf("a", `mutations: {annotations: [{key: k, valueExpression: "'v'"}]}`),
		"role.yaml": "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: x}\n",
		"p_test.yaml": header + objects + `cases:
- name: both
  expect:
  - {policy: a, verdict: allowed, annotations: {a.policy.prebind.dev/k: v}}
  - {policy: b, verdict: rejected, message: never}
- {name: unnamed, expect: [{verdict: allowed}]}
- {name: unknown, expect: [{policy: c, verdict: allowed}]}
`,
	})
	r, err := cases.Run(t.Context(), dir)
	require.NoError(t, err)
	require.Len(t, r.Cases, 1)
	assert.Empty(t, r.Cases[0].Failures)
	require.Len(t, r.Cases[0].Results, 2)
	assert.ErrorContains(t, r.Err, `case "unnamed": expect: policy "": must be one of a, b`)
	assert.ErrorContains(t, r.Err, `case "unknown": expect: policy "c": must be one of a, b`)
	assert.Equal(t, []string{"BindPolicy b: no case is allowed"}, r.Uncovered())
}

func TestRun_Invalid(t *testing.T) {
	const okPolicy = `validations: [{expression: "true"}]`
	valid := header + objects + "cases: [{name: c, expect: [{verdict: allowed}]}]\n"
	for name, tc := range map[string]struct {
		reason, policy, test, says string
	}{
		"UnknownField": {reason: "a misspelled field is an error with its line", policy: policyOf("p", okPolicy), test: strings.Replace(valid, "expect:", "expct: [], expect:", 1), says: "p_test.yaml:6: cases[0].expct: unknown field"},
		"Verdict":      {reason: "verdicts are checked", policy: policyOf("p", okPolicy), test: strings.Replace(valid, "allowed", "denied", 1), says: `cases[0].expect[0].verdict: must be one of`},
		"NoExpect":     {reason: "a case without expectation cannot fail", policy: policyOf("p", okPolicy), test: strings.Replace(valid, "[{verdict: allowed}]", "[]", 1), says: "cases[0].expect: required"},
		"NoCases":      {reason: "a test without cases cannot fail", policy: policyOf("p", okPolicy), test: header + "cases: []\n", says: "cases: required"},
		"Kind":         {reason: "only tests have the suffix", policy: policyOf("p", okPolicy), test: policyOf("q", okPolicy), says: "may contain only"},
		"Object":       {reason: "unknown fields of built-in kinds are errors", policy: policyOf("p", okPolicy), test: strings.Replace(valid, "labels: {app: web}", "label: {app: web}", 1), says: "p_test.yaml:3: objects: v1 Pod default/a: metadata.label: unknown field"},
		"BooleanName":  {reason: "YAML reads some texts as other types", policy: policyOf("p", okPolicy), test: strings.Replace(valid, "name: n1", "name: n", 1), says: "p_test.yaml:3: objects: v1 Node : an object requires apiVersion, kind and metadata.name, as strings"},
		"SameObject":   {reason: "two objects with the same identity are a mistake", policy: policyOf("p", okPolicy), test: strings.Replace(valid, "name: n1, labels: {rack: r1}}}\n", "name: n1}}\n- {apiVersion: v1, kind: Node, metadata: {name: n1}}\n", 1), says: "duplicate object v1 Node n1"},
		"Policy":       {reason: "a policy with a problem is reported with its line", policy: policyOf("p", "mode: Enforce\nvalidations: [{expression: foo}]"), test: valid, says: "policy.yaml:6: BindPolicy p: spec.validations[0].expression: "},
		"NoTest":       {reason: "a file without tests cannot fail", policy: policyOf("p", okPolicy), test: "# nothing\n", says: "p_test.yaml: the file contains no test"},
		"NoPolicy":     {reason: "a directory without policies is a mistake", policy: "# nothing\n", test: valid, says: "the directory contains no BindPolicy"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := write(t, map[string]string{"policy.yaml": tc.policy, "p_test.yaml": tc.test})
			r, err := cases.Run(t.Context(), dir)
			require.NoError(t, err)
			require.ErrorContains(t, r.Err, tc.says, tc.reason)
			assert.True(t, r.Failed())
			assert.Empty(t, r.Cases)
		})
	}
}

// Decoders report the first wrong type.
func TestRun_WrongTypes(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, content, line, says string
	}{
		"Time":   {reason: "a time has a date", content: "objects:\n- {apiVersion: v1, kind: Pod, metadata: {name: a, creationTimestamp: today}}\ncases: [{name: c, expect: [{verdict: allowed}]}]\n", line: ":3", says: "objects: v1 Pod default/a: parsing time \"today\""},
		"Map":    {reason: "expectations are a list", content: "cases:\n- name: c\n  expect: {verdict: allowed}\n", line: ":3", says: "cases.expect: must be of type []cases.Expectation, got object"},
		"Object": {reason: "a mistake in an object is reported once, not in each case", content: "objects:\n- {apiVersion: v1, kind: Node, metadata: {name: n1, labels: {a: 1}}}\ncases: [{name: c, expect: [{verdict: allowed}]}, {name: d, expect: [{verdict: allowed}]}]\n", line: ":3", says: "objects: v1 Node n1: metadata.labels: must be of type string, got number"},
		"Waited": {reason: "a duration has a unit", content: "cases:\n- name: c\n  waited: 3\n  expect: [{verdict: allowed}]\n", line: ":3", says: "cases.waited: must be of type string, got number"},
		"OfCase": {reason: "an object of a case is named", content: "cases:\n- name: c\n  objects: [{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {a: 1}}}]\n  expect: [{verdict: allowed}]\n", line: ":4", says: "case \"c\": v1 Node n1: metadata.labels: must be of type string, got number"},
		"Kind":   {reason: "a pod of another group would not be found", content: "objects:\n- {apiVersion: apps/v1, kind: Pod, metadata: {name: a}}\ncases: [{name: c, expect: [{verdict: allowed}]}]\n", line: ":3", says: "objects: apps/v1 Pod a: apps/v1 has no kind Pod"},
	} {
		t.Run(name, func(t *testing.T) {
			r := runOne(t, `validations: [{expression: "true"}]`, tc.content)
			require.ErrorContains(t, r.Err, "p_test.yaml"+tc.line+": "+tc.says, tc.reason)
			assert.NotContains(t, r.Err.Error(), "\n")
			assert.Empty(t, r.Cases)
		})
	}
}

func TestRun_KeyPrefixes(t *testing.T) {
	spec := `mutations: {annotations: [{key: ray.io/rack, valueExpression: "'v'"}]}`
	test := objects + "cases: [{name: c, expect: [{verdict: allowed, annotations: {ray.io/rack: v}}]}]\n"
	r := runOne(t, spec, test)
	require.ErrorContains(t, r.Err, "add ray.io to keyPrefixes")
	passes(t, runOne(t, spec, "keyPrefixes: [ray.io]\n"+test), 1, "the prefix is allowed")
}

func TestRun_Tasks(t *testing.T) {
	spec := `tasks: [{name: prefetch, handler: example.com/prefetch, parameters: [{key: node, valueExpression: node.metadata.name}]}]`
	of := func(node string) string {
		return objects + "cases: [{name: c, expect: [{verdict: allowed, tasks: {prefetch: {node: " + node + "}}}]}]\n"
	}
	passes(t, runOne(t, spec, of("n1")), 1, "the parameters are those of the task")
	assert.True(t, runOne(t, spec, of("other")).Failed())
}

const failing = `
cases:
- name: fails
  expect:
  - {verdict: rejected, message: other}
- name: differs
  expect:
  - verdict: allowed
    message: m
    messageContains: part
    rule: spec.waitFor[x]
    annotations: {p.policy.prebind.dev/k: w, p.policy.prebind.dev/same: s, other: "1"}
    labels: {l: v}
    waived: [x]
- name: passes
  expect: [{verdict: allowed}]
`

func TestResult_Text(t *testing.T) {
	r := runOne(t, `mutations: {annotations: [{key: k, valueExpression: "'v'"}, {key: same, valueExpression: "'s'"}, {key: more, valueExpression: "'m'"}]}`, objects+failing)
	var out strings.Builder
	require.NoError(t, r.WriteText(&out, false))
	got := strings.ReplaceAll(out.String(), r.Dir, "DIR")
	assert.Equal(t, `--- FAIL: fails (DIR/p_test.yaml)
    BindPolicy p: verdict
      expected: rejected
      got:      allowed
--- FAIL: differs (DIR/p_test.yaml)
    BindPolicy p: message
      expected: m
      got:      ""
    BindPolicy p: messageContains
      expected: part
      got:      ""
    BindPolicy p: rule
      expected: spec.waitFor[x]
      got:      ""
    BindPolicy p: annotations
      expected: other: "1"
                p.policy.prebind.dev/k: w
                p.policy.prebind.dev/same: s
      got:      p.policy.prebind.dev/k: v
                p.policy.prebind.dev/more: m
                p.policy.prebind.dev/same: s
    BindPolicy p: labels
      expected: l: v
      got:      null
    BindPolicy p: waived
      expected: - x
      got:      null
FAIL  DIR  3 cases, 2 failed
`, got)
}

func TestResult_Verbose(t *testing.T) {
	spec := `mode: Audit
waitFor: [{name: rack, expression: "'rack' in node.metadata.labels", message: no rack}]
tasks: [{name: prefetch, handler: example.com/prefetch, parameters: [{key: node, valueExpression: node.metadata.name}]}]
mutations: {annotations: [{key: rack, valueExpression: "node.metadata.labels['rack']"}]}`
	r := runOne(t, spec, objects+`cases:
- {name: allowed, expect: [{verdict: allowed}]}
- name: waiting
  objects: [{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {rack: null, a: b}}}]
  expect: [{verdict: allowed}]
`)
	var out strings.Builder
	require.NoError(t, r.WriteText(&out, true))
	assert.Equal(t, `--- PASS: allowed (DIR/p_test.yaml)
    # BindPolicy p: allowed, cost COST, mode Audit
    - annotations:
        p.policy.prebind.dev/rack: r1
      policy: p
      tasks:
        prefetch:
          node: n1
      verdict: allowed
--- FAIL: waiting (DIR/p_test.yaml)
    BindPolicy p: verdict
      expected: allowed
      got:      waiting (spec.waitFor[rack]): no rack
    # BindPolicy p: waiting, cost COST, mode Audit
    - message: no rack
      policy: p
      rule: spec.waitFor[rack]
      verdict: waiting
FAIL  DIR  2 cases, 1 failed
`, regexp.MustCompile("cost [1-9][0-9]*").ReplaceAllString(strings.ReplaceAll(out.String(), r.Dir, "DIR"), "cost COST"))
}
