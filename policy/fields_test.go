// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"context"
	"fmt"
	"math/rand"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/policy"
)

// fieldsOf returns the fields of the used resources by name, of the claims, and of the namespace.
func fieldsOf(c *policy.Compiled) map[string]string {
	got := map[string]string{}
	n := c.Needs()
	if n.Namespace != nil {
		got["namespace"] = n.Namespace.String()
	}
	if n.Claims != nil {
		got["claims"] = n.Claims.String()
	}
	for _, r := range n.Resources {
		got[r.Name] = r.Fields.String()
	}
	return got
}

func TestNeeds_Fields(t *testing.T) {
	type used = map[string]string
	cases := map[string]struct {
		reason     string
		expression string
		want       used
	}{
		"Nothing":        {reason: "only the pod and the node are used", expression: "pod.spec.hostNetwork && node.spec.unschedulable"},
		"Select":         {reason: "a path of fields", expression: "resources.csinode.spec.drivers[0].name == 'a'", want: used{"csinode": "spec.drivers[*].name"}},
		"Present":        {reason: "no field is used", expression: "resources.csinode != null", want: used{"csinode": ""}},
		"HasObject":      {reason: "no field is used", expression: "has(resources.csinode)", want: used{"csinode": ""}},
		"Kept":           {reason: "these fields are always kept", expression: "resources.csinode.metadata.labels['a'] == 'b' && resources.csinode.metadata.name == ''", want: used{"csinode": ""}},
		"Metadata":       {reason: "a key of a map", expression: "resources.csinode.metadata.annotations['a.b/c'] == ''", want: used{"csinode": `metadata.annotations["a.b/c"]`}},
		"AllMetadata":    {reason: "the complete value is compared", expression: "resources.csinode.metadata == resources.csinode.metadata", want: used{"csinode": "metadata"}},
		"WholeObject":    {reason: "the complete value is compared", expression: "resources.csinode == resources.other", want: used{"csinode": "*", "other": "*"}},
		"Has":            {reason: "only the presence is used", expression: "has(resources.csinode.spec)", want: used{"csinode": "spec?"}},
		"HasScalar":      {reason: "only the presence is used", expression: "has(resources.w.spec.x) && has(resources.csinode.metadata.generateName)", want: used{"w": "spec.x?", "csinode": "metadata.generateName?"}},
		"NullField":      {reason: "only the presence is used", expression: "resources.w.spec.a == null", want: used{"w": "spec.a?"}},
		"Optional":       {reason: "optional fields are fields", expression: "resources.?csinode.?spec.?drivers[?0].?name.orValue('') == ''", want: used{"csinode": "spec.drivers[*].name"}},
		"OptionalKey":    {reason: "optional keys are keys", expression: "resources.w.metadata.?annotations[?'x'].orValue('') == ''", want: used{"w": "metadata.annotations.x"}},
		"HasValue":       {reason: "only the presence is used", expression: "resources.w.?spec.?a.hasValue()", want: used{"w": "spec.a?"}},
		"OptMap":         {reason: "the value is followed through the macro", expression: "resources.csinode.?spec.optMap(s, s.drivers.exists(d, d.name == 'a')).orValue(false)", want: used{"csinode": "spec.drivers[*].name"}},
		"Exists":         {reason: "a variable of a comprehension is an element", expression: "resources.csinode.spec.drivers.exists(d, d.name == 'a' && d.nodeID != '')", want: used{"csinode": "spec.drivers[*].name,spec.drivers[*].nodeID"}},
		"ListExists":     {reason: "elements of a resource list are its objects", expression: "resources.agents.exists(p, p.status.phase == 'Running')", want: used{"agents": "status.phase"}},
		"ListSize":       {reason: "only the number is used", expression: "resources.agents.size() > 0 && size(resources.agents) > 0", want: used{"agents": ""}},
		"ListIndex":      {reason: "an element is an object", expression: "resources.agents[0].spec.nodeName == ''", want: used{"agents": "spec.nodeName"}},
		"ListNested":     {reason: "elements of elements", expression: "resources.agents.all(p, p.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True'))", want: used{"agents": "status.conditions[*].status,status.conditions[*].type"}},
		"Filter":         {reason: "the elements of the result are elements of the list", expression: "resources.agents.filter(p, p.status.phase == 'Running').exists(p, p.status.podIP == '')", want: used{"agents": "status.phase,status.podIP"}},
		"FilterSize":     {reason: "the elements of the result are not used", expression: "resources.agents.filter(p, p.status.phase == 'Running').size() == 1", want: used{"agents": "status.phase"}},
		"FilterIndex":    {reason: "the elements of the result are elements of the list", expression: "resources.agents.filter(p, p.status.phase == 'Running')[0].status.podIP == ''", want: used{"agents": "status.phase,status.podIP"}},
		"Map":            {reason: "the elements of the result are fields", expression: "resources.agents.map(p, p.status).all(s, s.phase == '')", want: used{"agents": "status.phase"}},
		"MapScalar":      {reason: "a scalar is used", expression: "'a' in resources.agents.map(p, p.status.podIP)", want: used{"agents": "status.podIP"}},
		"FlatMap":        {reason: "lists of lists", expression: "resources.agents.map(p, p.spec.containers).all(l, l.all(c, c.image == ''))", want: used{"agents": "spec.containers[*].image"}},
		"Sum":            {reason: "a sum contains the elements of both", expression: "(resources.agents + resources.agents).all(p, p.status.phase == '')", want: used{"agents": "status.phase"}},
		"ListLiteral":    {reason: "a list contains its elements", expression: "[resources.csinode, resources.other].all(n, n.spec.drivers.size() > 0)", want: used{"csinode": "spec.drivers[*]?", "other": "spec.drivers[*]?"}},
		"MapLiteral":     {reason: "a map contains its values", expression: "{'a': resources.csinode}['a'].spec.drivers == []", want: used{"csinode": "spec.drivers"}},
		"Conditional":    {reason: "both are possible", expression: "(pod.metadata.name == '' ? resources.csinode : resources.other).spec.drivers[0].nodeID == ''", want: used{"csinode": "spec.drivers[*].nodeID", "other": "spec.drivers[*].nodeID"}},
		"InMap":          {reason: "only the key is used", expression: "'a' in resources.w.spec.m", want: used{"w": "spec.m"}},
		"InTypedMap":     {reason: "only the key is used", expression: "'a' in resources.csinode.metadata.annotations", want: used{"csinode": "metadata.annotations.a?"}},
		"InList":         {reason: "elements are compared", expression: "'a' in resources.csinode.spec.drivers[0].topologyKeys", want: used{"csinode": "spec.drivers[*].topologyKeys"}},
		"Keys":           {reason: "the keys of a map are used", expression: "resources.csinode.metadata.annotations.exists(k, k == 'a')", want: used{"csinode": "metadata.annotations[*]?"}},
		"KeyAndValue":    {reason: "the value of each key is used", expression: "resources.csinode.metadata.annotations.exists(k, v, k == 'a' && v == 'b')", want: used{"csinode": "metadata.annotations[*]"}},
		"DynamicKey":     {reason: "any key may be used", expression: "resources.csinode.metadata.annotations[pod.metadata.name] == ''", want: used{"csinode": "metadata.annotations[*]"}},
		"Custom":         {reason: "fields of custom resources are fields", expression: "resources.w.spec.items.exists(i, i.name == 'a')", want: used{"w": "spec.items[*].name"}},
		"CustomTwo":      {reason: "a list or a map", expression: "resources.w.spec.items.exists(i, v, v.name == 'a')", want: used{"w": "spec.items[*].name"}},
		"Function":       {reason: "an unknown function uses everything", expression: "string(resources.w.spec.a) == string(resources.w.status)", want: used{"w": "spec.a,status"}},
		"Dyn":            {reason: "dyn is the value itself", expression: "dyn(resources.csinode).spec.drivers[0].name == ''", want: used{"csinode": "spec.drivers[*].name"}},
		"DynResources":   {reason: "all resources are used", expression: "dyn(resources)['w'].spec.a == 1", want: used{"w": "spec.a", "csinode": "spec.a", "other": "spec.a", "agents": "a", "none": "spec.a", "claimed": "spec.a", "claims": ""}},
		"Variable":       {reason: "a variable is its value", expression: "variables.spec.drivers[0].name == ''", want: used{"csinode": "spec.drivers[*].name"}},
		"VariableOf":     {reason: "a variable can use another", expression: "variables.running.exists(p, p.spec.hostNetwork)", want: used{"agents": "spec.hostNetwork,status.phase"}},
		"Shadowed":       {reason: "the variable of the comprehension may be meant", expression: "[pod].all(claims, claims.metadata.name == '')", want: used{"claims": "name"}},
		"Global":         {reason: "the leading dot means the global variable", expression: "[1].all(resources, .resources.csinode.spec.drivers[0].name == '')", want: used{"csinode": "spec.drivers[*].name"}},
		"Claims":         {reason: "fields of all claims", expression: "claims['a'].spec.storageClassName == 'x' && claims.all(v, claims[v].status.phase == 'Bound')", want: used{"claims": "spec.storageClassName,status.phase"}},
		"ClaimKeys":      {reason: "only the names of volumes are used", expression: "'a' in claims && claims.size() == 1", want: used{"claims": ""}},
		"ClaimsWhole":    {reason: "all claims are compared", expression: "claims == {}", want: used{"claims": "*"}},
		"Namespace":      {reason: "fields of the namespace", expression: "namespaceObject.metadata.annotations['a'] == ''", want: used{"namespace": "metadata.annotations.a"}},
		"NamespaceNull":  {reason: "no field is used", expression: "namespaceObject != null", want: used{"namespace": ""}},
		"NameUsesClaims": {reason: "the name of the resource is read, too", expression: "resources.claimed != null", want: used{"claimed": "", "claims": ""}},
		"Sort":           {reason: "the key and the elements are used", expression: "resources.agents.sortBy(p, p.metadata.name)[0].status.phase == ''", want: used{"agents": "*"}},
		"StringLiteral":  {reason: "text is not a field", expression: "'resources.csinode.spec' != ''"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			want := tc.want
			if want == nil {
				want = used{}
			}
			c := compile(t, declared+"variables: [{name: spec, expression: resources.csinode.spec}, {name: running, expression: \"resources.agents.filter(p, p.status.phase == 'Running')\"}]\n"+validation(tc.expression))
			assert.Equal(t, want, fieldsOf(c), tc.reason)
		})
	}
}

// The fields of all kinds of expressions count.
func TestNeeds_AllExpressions(t *testing.T) {
	for name, spec := range map[string]string{
		"Condition":   "matchConditions: [{name: a, expression: '%s != null'}]\n" + validation("true"),
		"Validation":  validation("%s != null"),
		"Message":     "validations: [{expression: 'true', messageExpression: '%s.spec.drivers[0].name'}]",
		"Wait":        "waitFor: [{name: a, expression: '%s != null'}]",
		"WaitMessage": "waitFor: [{name: a, expression: 'true', messageExpression: '%s.spec.drivers[0].name'}]",
		"Annotation":  "mutations: {annotations: [{key: a, valueExpression: '%s.spec.drivers[0].name'}]}",
		"Label":       "mutations: {labels: [{key: a, valueExpression: '%s.spec.drivers[0].name'}]}",
	} {
		t.Run(name, func(t *testing.T) {
			c := compile(t, declared+fmt.Sprintf(spec, "resources.csinode"))
			require.Len(t, c.Needs().Resources, 1)
			r := c.Needs().Resources[0]
			assert.Equal(t, "csinode", r.Name)
			assert.True(t, r.ByName)
			assert.Equal(t, "CSINode", r.Kind.Kind)
		})
	}
	assert.NotNil(t, compile(t, "matchConstraints: {namespaceSelector: {matchLabels: {a: b}}}\n"+validation("true")).Needs().Namespace)
	r := compile(t, declared+validation("resources.agents == []")).Needs().Resources[0]
	assert.False(t, r.ByName)
	assert.True(t, r.OnNode)
	assert.Equal(t, "kube-system", r.Namespace)
	assert.Equal(t, "app=cni", r.Labels.String())
}

// fieldsFrom returns the fields of an expression over resources.csinode.
func fieldsFrom(t *testing.T, expression string) *policy.Fields {
	t.Helper()
	c := compile(t, declared+validation(expression))
	require.Len(t, c.Needs().Resources, 1)
	return c.Needs().Resources[0].Fields
}

func TestFields_Union(t *testing.T) {
	name := fieldsFrom(t, "resources.csinode.spec.drivers.exists(d, d.name == '')")
	id := fieldsFrom(t, "resources.csinode.spec.drivers.exists(d, d.nodeID == '')")
	has := fieldsFrom(t, "has(resources.csinode.spec.drivers)")
	whole := fieldsFrom(t, "resources.csinode == resources.csinode")
	none := fieldsFrom(t, "resources.csinode != null")
	assert.Equal(t, "spec.drivers[*].name,spec.drivers[*].nodeID", name.Union(id).String())
	assert.Equal(t, name.Union(id).String(), id.Union(name).String())
	assert.Equal(t, name.String(), name.Union(has).String(), "the fields include the presence")
	assert.Equal(t, "*", name.Union(whole).String())
	assert.Equal(t, name.String(), name.Union(none).String())
	assert.Equal(t, name.String(), name.Union(nil).String())
	assert.Equal(t, name.String(), (*policy.Fields)(nil).Union(name).String())
	assert.Empty(t, (*policy.Fields)(nil).String())
	assert.Equal(t, "spec.drivers[*].name", name.String(), "Union does not change its arguments")
}

func TestFields_Transform(t *testing.T) {
	used := fieldsFrom(t, "resources.csinode.spec.drivers.exists(d, d.name == '') && resources.csinode.metadata.annotations['a'] == ''")
	node := &storagev1.CSINode{
		TypeMeta: metav1.TypeMeta{Kind: "CSINode", APIVersion: "storage.k8s.io/v1"},
		ObjectMeta: metav1.ObjectMeta{
			Name: "n", UID: "u", ResourceVersion: "7", Labels: map[string]string{"l": "1"}, Annotations: map[string]string{"a": "1", "b": "2"},
			OwnerReferences: []metav1.OwnerReference{{Name: "o"}}, CreationTimestamp: metav1.NewTime(now), DeletionTimestamp: &metav1.Time{Time: now},
			ManagedFields: []metav1.ManagedFieldsEntry{{}}, Finalizers: []string{"f"}, Generation: 3,
		},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "a", NodeID: "1", TopologyKeys: []string{"k"}}, {Name: "b"}}},
	}
	before := node.DeepCopy()
	got, err := used.Transform(node)
	require.NoError(t, err)
	assert.Equal(t, before, node, "the argument does not change")
	assert.Equal(t, &storagev1.CSINode{
		TypeMeta: before.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Name: "n", UID: "u", ResourceVersion: "7", Labels: map[string]string{"l": "1"}, Annotations: map[string]string{"a": "1"},
			OwnerReferences: []metav1.OwnerReference{{Name: "o"}}, CreationTimestamp: metav1.NewTime(now), DeletionTimestamp: &metav1.Time{Time: now},
		},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "a"}, {Name: "b"}}},
	}, got)
	again, err := used.Transform(got)
	require.NoError(t, err)
	assert.Equal(t, got, again, "a second transform changes nothing")

	custom := fieldsFrom(t, "resources.w.spec.items.exists(i, i.name == '') && has(resources.w.status)")
	w := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"name": "w", "labels": map[string]any{"l": "1"}, "annotations": map[string]any{"a": "1"}},
		"spec":     map[string]any{"items": []any{map[string]any{"name": "a", "x": "y"}, "odd"}, "nodeName": "n", "other": "o"},
		"status":   map[string]any{"a": "b"}, "data": map[string]any{},
	}}
	copied := w.DeepCopy()
	got, err = custom.Transform(w)
	require.NoError(t, err)
	assert.Equal(t, copied, w, "the argument does not change")
	assert.Equal(t, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"name": "w", "labels": map[string]any{"l": "1"}},
		"spec":     map[string]any{"items": []any{map[string]any{"name": "a"}, "odd"}, "nodeName": "n"},
		"status":   map[string]any{},
	}}, got)

	tombstone := toolscache.DeletedFinalStateUnknown{Key: "k", Obj: node}
	got, err = used.Transform(tombstone)
	require.NoError(t, err)
	assert.Equal(t, tombstone, got, "other values are unchanged")
	got, err = (*policy.Fields)(nil).Transform(&corev1.Pod{ObjectMeta: meta("p"), Spec: corev1.PodSpec{NodeName: "n", HostNetwork: true}})
	require.NoError(t, err)
	assert.Equal(t, &corev1.Pod{ObjectMeta: meta("p"), Spec: corev1.PodSpec{NodeName: "n"}}, got, "nil keeps the names")
}

// transformed returns the objects as a cache with the policy's fields has them.
func transformed(t testing.TB, c *policy.Compiled, o *objects) *objects {
	t.Helper()
	n := c.Needs()
	kept := &objects{resources: map[string][]client.Object{}}
	if n.Namespace != nil && o.namespace != nil {
		kept.namespace = transform(t, n.Namespace, o.namespace)
	}
	if n.Claims != nil {
		kept.claims = map[string]*corev1.PersistentVolumeClaim{}
		for name, claim := range o.claims {
			if claim != nil {
				claim = transform(t, n.Claims, claim)
			}
			kept.claims[name] = claim
		}
	}
	for _, r := range n.Resources {
		for _, object := range o.resources[r.Name] {
			kept.resources[r.Name] = append(kept.resources[r.Name], transform(t, r.Fields, object))
		}
	}
	return kept
}

func transform[T client.Object](t testing.TB, f *policy.Fields, o T) T {
	t.Helper()
	got, err := f.Transform(o)
	require.NoError(t, err)
	typed, ok := got.(T)
	require.True(t, ok)
	return typed
}

// same checks that the policy has the same result for complete and for reduced objects.
func same(t testing.TB, c *policy.Compiled, o *objects) policy.Verdict {
	t.Helper()
	s := subject()
	full, err := c.Evaluate(context.WithoutCancel(t.Context()), s, o)
	require.NoError(t, err)
	reduced, err := c.Evaluate(context.WithoutCancel(t.Context()), s, transformed(t, c, o))
	require.NoError(t, err)
	if full.Err != nil {
		require.EqualError(t, reduced.Err, full.Err.Error())
		full.Err, reduced.Err = nil, nil
	}
	// The cost of a comparison depends on the size of the values.
	full.Cost, reduced.Cost = 0, 0
	require.Equal(t, full, reduced)
	return full.Verdict
}

// properties are expressions whose result must not depend on fields that they do not use.
var properties = []string{
	"resources.csinode.spec.drivers.map(d, d.name).join(',')",
	"resources.csinode.spec.drivers.filter(d, has(d.allocatable) && d.allocatable.count > 0).map(d, d.nodeID).join(',')",
	"string(resources.csinode.spec.drivers.size()) + string(has(resources.csinode.metadata.annotations))",
	"resources.csinode.metadata.annotations.map(k, k).join(',')",
	"resources.csinode.metadata.annotations.transformList(k, v, k + v).join(',')",
	"resources.csinode.metadata.?annotations[?'a'].orValue('none')",
	"resources.csinode.metadata.annotations['a']",
	"string('a' in resources.csinode.metadata.annotations)",
	"string(resources.csinode.metadata.annotations.size())",
	"string(has(resources.csinode.metadata.annotations) ? 'a' in resources.csinode.metadata.annotations : false)",
	"string(resources.csinode.metadata.creationTimestamp) + resources.csinode.kind",
	"string(resources.csinode == resources.other)",
	"string(resources.csinode.spec == resources.other.spec)",
	"resources.agents.map(p, p.spec.containers.map(c, c.image).join('+')).join(',')",
	"resources.agents.filter(p, p.status.?conditions.orValue([]).exists(c, c.type == 'Ready')).map(p, p.status.podIP).join(',')",
	"resources.agents.map(p, string(has(p.spec.affinity)) + string(has(p.spec.affinity.nodeAffinity))).join(',')",
	"resources.agents.map(p, p.spec.containers.map(c, c.?resources.?requests[?'cpu'].orValue('0')).join('+')).join(',')",
	"resources.agents.map(p, p.spec.containers.map(c, string(c.resources.requests.size()))).map(l, l.join('+')).join(',')",
	"resources.agents.map(p, p.spec.volumes.filter(v, has(v.csi)).map(v, v.csi.driver).join('+')).join(',')",
	"resources.agents.map(p, string(p.spec.volumes[0].configMap == null)).join(',')",
	"resources.agents.map(p, string(p.spec.securityContext == null)).join(',')",
	"resources.agents.map(p, p.metadata.labels.map(k, k + p.metadata.labels[k]).join('+')).join(',')",
	"(resources.agents + resources.agents).map(p, p.spec.schedulerName).join(',')",
	"resources.agents.map(p, {'a': p.status, 'b': p.status}['b'].phase).join(',')",
	"resources.agents.map(p, [p.spec, p.spec][1].hostname).join(',')",
	"resources.agents.sortBy(p, p.metadata.name).map(p, p.status.?phase.orValue('')).join(',')",
	"resources.agents.map(p, p.spec.containers[0].livenessProbe.httpGet.port).map(x, string(x)).join(',')",
	"resources.agents.map(p, p.?spec.?containers.optMap(l, l.map(c, c.name).join('+')).orValue('x')).join(',')",
	"resources.w.spec.tags.join(',') + string(has(resources.w.spec.map.a))",
	"resources.w.spec.map.map(k, resources.w.spec.map[k]).join(',')",
	"resources.w.spec.map.transformList(k, v, k + string(v)).join(',')",
	"string(resources.w.spec.size) + string(resources.w.spec.map.size()) + string(resources.w.spec.tags.size())",
	"string('a' in resources.w.spec.map) + string('x' in resources.w.spec.tags) + string(has(resources.w.foo))",
	"string(resources.w.spec.none == null) + string(resources.w.?spec.?foo.hasValue())",
	"string(dyn(resources)['w'].spec.size) + string(dyn(resources).csinode.spec.drivers.size())",
	"claims.transformList(k, v, v == null ? k : k + v.spec.?storageClassName.orValue('')).join(',')",
	"claims.map(k, claims[k].?status.?phase.orValue('x')).join(',')",
	"claims.data.spec.accessModes.join(',') + string(quantity(claims.data.spec.resources.requests['storage']).asApproximateFloat())",
	"namespaceObject.metadata.?annotations.orValue({}).map(k, k).join(',') + namespaceObject.status.phase",
	"string(namespaceObject.metadata == namespaceObject.metadata) + string(namespaceObject.spec.finalizers.size())",
	"variables.spec.drivers.map(d, string(d.?topologyKeys.orValue([]).size())).join(',')",
	"variables.running.map(p, p.status.podIP).join(',')",
}

// Evaluation of reduced objects has the same result as of complete ones.
func TestFields_TransformKeepsResults(t *testing.T) {
	fill := fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(1), serializer.NewCodecFactory(scheme.Scheme))
	verdicts := map[policy.Verdict]int{}
	for i, expression := range properties {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			c := compile(t, declared+"variables: [{name: spec, expression: resources.csinode.spec}, {name: running, expression: \"resources.agents.filter(p, p.status.phase == 'Running')\"}]\n"+
				"mutations: {annotations: [{key: a, valueExpression: "+quoted(expression)+"}]}")
			for range 20 {
				o := world()
				for _, list := range o.resources {
					for _, object := range list {
						if _, ok := object.(*unstructured.Unstructured); !ok {
							name := object.GetName()
							fill.Fill(object)
							object.SetName(name)
						}
					}
				}
				fill.Fill(o.claims["data"])
				fill.Fill(o.namespace)
				for _, object := range []client.Object{o.resources["csinode"][0], o.namespace} {
					object.SetNamespace("")
				}
				verdicts[same(t, c, o)]++
			}
			verdicts[same(t, c, world())]++
		})
	}
	assert.Greater(t, verdicts[policy.Allowed], verdicts[policy.Failed], "most expressions have a value")
}

// The analysis ends for deeply nested loops.
func TestNeeds_Nested(t *testing.T) {
	expression := "resources.agents"
	for range 12 {
		expression = "resources.agents.filter(a, " + expression + ".size() > 0)"
	}
	c := compile(t, declared+validation(expression+".size() > 0"))
	assert.Equal(t, map[string]string{"agents": "*"}, fieldsOf(c))
	chain := "resources.agents" + strings.Repeat(".filter(a, a.status.phase == '')", 12) + ".all(a, a.status.podIP == '')"
	assert.Equal(t, map[string]string{"agents": "status.phase,status.podIP"}, fieldsOf(compile(t, declared+validation(chain))))
}
