// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bindpolicy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/policy"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

// reducing is a cached reader whose objects are those after the transform of the selection. err is the error of all lists.
type reducing struct {
	client.Reader
	err error
}

func (r reducing) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	if r.err != nil {
		return r.err
	}
	if err := r.Reader.List(ctx, into, opts...); err != nil {
		return err
	}
	by, _ := framework.SelectedBy(opts)
	var items []runtime.Object
	if err := meta.EachListItem(into, func(item runtime.Object) error {
		reduced, err := by.Transform(item)
		if o, ok := reduced.(client.Object); ok {
			items = append(items, o)
		}
		return err
	}); err != nil {
		return err
	}
	return meta.SetList(into, items)
}

// configMap returns a ConfigMap with a value of the size.
func configMap(name string, size int) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: gen.DefaultNamespace}, Data: map[string]string{"a": strings.Repeat("x", size), "b": "1"}}
}

// evaluateOne evaluates one policy with the reader as the cache. It returns its result, the number of reads of the API server, and
// the error of reads.
func evaluateOne(t *testing.T, server *fakeapi.Server, cached framework.Reader, spec string) (policy.Result, int, error) {
	t.Helper()
	c, err := policy.Compile(policyOf(t, "a", spec), policy.Options{})
	require.NoError(t, err)
	e := &entry{name: "a", compiled: c, reads: new(sharing).readsOf(c.Needs(), server.Connect())}
	pod, node := gen.Pod("web"), gen.Node("node-a")
	bc := &framework.BindContext{Pod: pod, Node: node, Binding: gen.Binding(pod, node.Name)}
	server.Forget()
	applied, err := evaluate(t.Context(), set{e}, cached, subjectOf(bc))
	if err != nil {
		return policy.Result{}, server.Reads(), err
	}
	return applied[0].result, server.Reads(), nil
}

func TestObjects_Large(t *testing.T) {
	const byName = `
resources: [{name: limits, apiVersion: v1, kind: ConfigMap, nameExpression: "'limits'", namespaceExpression: pod.metadata.namespace}]
validations: [{expression: "resources.limits != null && resources.limits.data['%s'].size() > 0"}]`
	const all = `
failurePolicy: Ignore
resources: [{name: limits, apiVersion: v1, kind: ConfigMap, labelSelector: {}}]
validations: [{expression: "resources.limits.all(l, l.data['a'].size() > 0)"}]`
	many := func(n int) []client.Object {
		var objects []client.Object
		for i := range n {
			objects = append(objects, configMap(fmt.Sprintf("large-%d", i), maxObject), configMap(fmt.Sprintf("small-%d", i), 10))
		}
		return objects
	}
	for name, tc := range map[string]struct {
		reason  string
		objects []client.Object
		spec    string
		want    policy.Verdict
		says    string
		reads   int
	}{
		"Small":     {reason: "the cache has the object", objects: []client.Object{configMap("limits", 1000)}, spec: fmt.Sprintf(byName, "a"), want: policy.Allowed},
		"OtherKey":  {reason: "only the used key counts", objects: []client.Object{configMap("limits", maxObject)}, spec: fmt.Sprintf(byName, "b"), want: policy.Allowed},
		"Large":     {reason: "the API server has the object", objects: []client.Object{configMap("limits", maxObject)}, spec: fmt.Sprintf(byName, "a"), want: policy.Allowed, reads: 1},
		"OtherName": {reason: "objects that are not needed are not read", objects: many(1), spec: fmt.Sprintf(byName, "a"), want: policy.Rejected},
		"Few":       {reason: "the API server has the large objects", objects: many(maxLarge), spec: all, want: policy.Allowed, reads: maxLarge},
		"Many": {
			reason: "many reads would delay the bind, and failurePolicy applies", objects: many(maxLarge + 1), spec: all, want: policy.Ignored,
			says: "resources.limits: the policies read more than 10 objects over 16 KiB in this bind; restrict it with namespace, labelSelector or onNode",
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := fakeapi.New(tc.objects...)
			got, reads, err := evaluateOne(t, server, reducing{Reader: server.Cache()}, tc.spec)
			require.NoError(t, err)
			assert.Equal(t, tc.want, got.Verdict, "%s: %s", tc.reason, got.Message)
			assert.Contains(t, got.Message, tc.says)
			assert.Equal(t, tc.reads, reads, tc.reason)
		})
	}
}

// The kind can be removed while the cache still has its objects, and an object can change before it is read.
func TestObjects_LargeChanged(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		now    *corev1.Pod
		err    error
		want   int
		fails  bool
	}{
		"Same":    {reason: "it is read", now: gen.Pod("a", gen.BoundTo("n"), gen.Label("app", "x")), want: 1},
		"Moved":   {reason: "it is not on the node any more", now: gen.Pod("a", gen.BoundTo("m"), gen.Label("app", "x"))},
		"Label":   {reason: "the selector does not match any more", now: gen.Pod("a", gen.BoundTo("n"))},
		"Gone":    {reason: "it was deleted", now: gen.Pod("b", gen.BoundTo("n"), gen.Label("app", "x"))},
		"Removed": {reason: "the kind is not served any more", now: gen.Pod("a"), err: &meta.NoKindMatchError{}},
		"Error":   {reason: "errors are returned", now: gen.Pod("a"), err: errors.New("no answer"), fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			server := fakeapi.New(tc.now)
			selector, err := metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}})
			require.NoError(t, err)
			s := &watch{Selection: *selectionOf(&policy.Resource{Kind: corev1.SchemeGroupVersion.WithKind("Pod"), OnNode: true, Labels: selector})}
			marked, err := markLarge(gen.Pod("a", gen.BoundTo("n")))
			require.NoError(t, err)
			o := &objects{reads: &reads{live: failing{Reader: server.Connect(), err: tc.err}}, node: "n"}
			o.keep(readKey{s.Name, "n"}, []client.Object{marked.(client.Object)}) //nolint:forcetypeassert,errcheck // markLarge returns an object.
			found, err := o.whole(t.Context(), s, "n")
			assert.Equal(t, tc.fails, err != nil, "%s: %v", tc.reason, err)
			assert.Len(t, found, tc.want, tc.reason)
		})
	}
}

// failing is a reader whose Get fails if err is set.
type failing struct {
	client.Reader
	err error
}

func (f failing) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	if f.err != nil {
		return f.err
	}
	return f.Reader.Get(ctx, key, into, opts...)
}

func TestReduce(t *testing.T) {
	text := strings.Repeat("x", maxObject)
	labelled := configMap("a", 1)
	labelled.Labels = map[string]string{"a": text}
	owned := configMap("a", 1)
	owned.OwnerReferences = []metav1.OwnerReference{{Name: text}}
	many := gen.Pod("a", gen.BoundTo("n"))
	many.Spec.Containers = make([]corev1.Container, 100)
	managed := configMap("a", 1)
	managed.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: text}}
	custom := func(content map[string]any) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: content}
		u.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Rack"})
		u.SetName("a")
		u.SetUID("u")
		return u
	}
	for name, tc := range map[string]struct {
		reason string
		object client.Object
		large  bool
		node   string
	}{
		"Small":        {reason: "the memory is less than the limit", object: configMap("a", maxObject/2)},
		"ManagedField": {reason: "the cache does not have managed fields", object: managed},
		"Data":         {reason: "a value is large", object: configMap("a", maxObject), large: true},
		"Labels":       {reason: "labels count", object: labelled, large: true},
		"Owners":       {reason: "owners count", object: owned, large: true},
		"Containers":   {reason: "elements without content need memory", object: many, large: true, node: "n"},
		"Custom":       {reason: "custom resources can be small", object: custom(map[string]any{"spec": map[string]any{"nodeName": "n", "a": "b"}}), node: "n"},
		"CustomLarge":  {reason: "custom resources count too", object: custom(map[string]any{"spec": map[string]any{"nodeName": "n", "a": []any{text}}}), large: true, node: "n"},
		"CustomNode":   {reason: "a text of this size is not a node", object: custom(map[string]any{"spec": map[string]any{"nodeName": text}}), large: true},
		"CustomType":   {reason: "a list is not a node", object: custom(map[string]any{"spec": map[string]any{"nodeName": []any{text}}}), large: true},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := policy.Compile(policyOf(t, "a", `
resources: [{name: x, apiVersion: example.com/v1, kind: Rack, labelSelector: {}}]
validations: [{expression: "resources.x == []"}]`), policy.Options{})
			require.NoError(t, err)
			reduced, err := reduce(c.Needs().Resources[0].Fields)(tc.object.DeepCopyObject())
			require.NoError(t, err)
			got, ok := reduced.(client.Object)
			require.True(t, ok)
			assert.Equal(t, tc.large, isLarge(got), tc.reason)
			assert.Equal(t, tc.object.GetName(), got.GetName())
			assert.Equal(t, tc.object.GetUID(), got.GetUID())
			assert.Equal(t, tc.node, nodeNameOf(got), tc.reason)
			content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(got)
			require.NoError(t, err)
			if tc.large {
				assert.Less(t, len(fmt.Sprint(content)), 1000, tc.reason)
			}
		})
	}
	tombstone, err := reduce(nil)("other")
	require.NoError(t, err)
	assert.Equal(t, "other", tombstone, "another type stays as it is")
}

func TestObjects_TooMany(t *testing.T) {
	const spec = `
resources: [{name: pods, apiVersion: v1, kind: Pod, labelSelector: {}}]
validations: [{expression: "resources.pods.size() > 0"}]
failurePolicy: `
	server := fakeapi.New()
	for i := range maxObjects + 2 {
		server.Put(gen.Pod(fmt.Sprintf("p-%d", i)))
	}
	for failurePolicy, want := range map[string]policy.Verdict{"Fail": policy.Failed, "Ignore": policy.Ignored} {
		got, _, err := evaluateOne(t, server, server.Cache(), spec+failurePolicy)
		require.NoError(t, err)
		assert.Equal(t, want, got.Verdict)
		assert.Contains(t, got.Message, "resources.pods has more than 10,000 objects; restrict it with namespace, labelSelector or onNode")
	}
}

// The kind of a resource can be removed from the API server.
func TestObjects_KindRemoved(t *testing.T) {
	const spec = `
resources: [{name: racks, apiVersion: example.com/v1, kind: Rack, labelSelector: {}}]
validations: [{expression: "resources.racks.size() == 0"}]`
	server := fakeapi.New()
	for name, err := range map[string]error{
		"NotFound": apierrors.NewNotFound(schema.GroupResource{Resource: "racks"}, ""),
		"NoMatch":  fmt.Errorf("mapping: %w", &meta.NoKindMatchError{}),
	} {
		got, _, err := evaluateOne(t, server, reducing{err: err}, spec)
		require.NoError(t, err, name)
		assert.Equal(t, policy.Allowed, got.Verdict, "%s: a kind that is not served has no objects", name)
	}
	_, _, err := evaluateOne(t, server, reducing{err: errors.New("no answer")}, spec)
	require.ErrorContains(t, err, "no answer")
}
