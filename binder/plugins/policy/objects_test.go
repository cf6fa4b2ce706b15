// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

// configMap returns a ConfigMap with a value of the size.
func configMap(name string, size int) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: gen.DefaultNamespace}, Data: map[string]string{"a": strings.Repeat("x", size)}}
}

// evaluateOne evaluates one policy for the pod, with the reader as the cache.
func evaluateOne(t *testing.T, cached framework.Reader, spec string, unwatched error) policy.Result {
	t.Helper()
	pod := gen.Pod("web")
	c, err := policy.Compile(policyOf(t, "a", spec), policy.Options{})
	require.NoError(t, err)
	bc := &framework.BindContext{Pod: pod, Node: gen.Node("node-a"), Binding: gen.Binding(pod, "node-a"), Now: time.Now()}
	p := &Plugin{h: framework.Handle{Namespace: "prebind-system"}}
	e := &entry{compiled: c, reads: map[*policy.Resource]*framework.Selection{}, unwatched: map[*policy.Resource]error{}}
	for _, r := range c.Reads() {
		e.reads[r], e.unwatched[r] = selectionOf(r), unwatched
	}
	applied, err := p.evaluate(t.Context(), []*entry{e}, cached, subjectOf(bc), func(policy.Result) {})
	require.NoError(t, err)
	return applied[0]
}

// Objects of other namespaces, which other users create, cannot make a policy fail that reads those of the pod's namespace.
func TestObjects_Namespace(t *testing.T) {
	large := configMap("large", policy.MaxObject)
	large.Namespace = "team-b"
	same := gen.Pod("same", gen.BoundTo("node-a"))
	other := gen.Pod("other", gen.InNamespace("team-b"), gen.BoundTo("node-a"))
	cached := fakeapi.New(configMap("a", 1), large, same, other).Cache()
	for name, tc := range map[string]struct {
		reason, selects string
		want            policy.Verdict
	}{
		"All":     {reason: "one object is too large", selects: "kind: ConfigMap, labelSelector: {}", want: policy.Failed},
		"One":     {reason: "only the objects of the namespace count", selects: "kind: ConfigMap, labelSelector: {}, namespaceExpression: pod.metadata.namespace", want: policy.Allowed},
		"OnNode":  {reason: "only the pod of the namespace counts", selects: "kind: Pod, onNode: true, namespaceExpression: pod.metadata.namespace", want: policy.Allowed},
		"NoSpace": {reason: "an empty namespace has no objects", selects: "kind: ConfigMap, labelSelector: {}, namespaceExpression: \"''\"", want: policy.Rejected},
	} {
		t.Run(name, func(t *testing.T) {
			spec := "resources: [{name: all, apiVersion: v1, " + tc.selects + "}]\nvalidations: [{expression: resources.all.size() == 1}]"
			got := evaluateOne(t, cached, spec, nil)
			assert.Equal(t, tc.want, got.Verdict, "%s: %s", tc.reason, got.Message)
		})
	}
}

// An incomplete list is never complete, although Prebind's own objects are left out of it.
func TestObjects_TooMany(t *testing.T) {
	own := configMap("records", 1)
	own.Namespace = "prebind-system"
	all := []client.Object{own}
	for i := range policy.MaxList - 1 {
		all = append(all, configMap(fmt.Sprint(i), 1))
	}
	got := evaluateOne(t, fakeapi.New(all...).Cache(), "resources: [{name: all, apiVersion: v1, kind: ConfigMap, labelSelector: {}}]\nvalidations: [{expression: resources.all.size() > 0}]", nil)
	assert.Equal(t, policy.Failed, got.Verdict)
	assert.Contains(t, got.Message, "more than 1000 objects")
}

// A policy that cannot be evaluated follows its failure policy, whatever the reason.
func TestObjects_FailurePolicy(t *testing.T) {
	const all = `
resources: [{name: limits, apiVersion: v1, kind: ConfigMap, labelSelector: {}}]
validations: [{expression: "resources.limits.all(l, l.data['a'].size() > 0)"}]`
	own := configMap("records", 1)
	own.Namespace = "prebind-system"
	for name, tc := range map[string]struct {
		reason, spec, says string
		objects            []client.Object
		unwatched, read    error
		want               policy.Verdict
	}{
		"Small":     {reason: "the cache has the objects", objects: []client.Object{configMap("a", 1), configMap("b", 1)}, spec: all, want: policy.Allowed},
		"Own":       {reason: "policies cannot read Prebind's own objects", objects: []client.Object{own}, spec: strings.Replace(all, "resources.limits.all(l, l.data['a'].size() > 0)", "resources.limits == []", 1), want: policy.Allowed},
		"Unwatched": {reason: "the watch can begin later", spec: all, unwatched: errors.New("spec.resources[limits]: forbidden"), want: policy.Waiting, says: "spec.resources[limits]: forbidden"},
		"Read":      {reason: "the next read can succeed", spec: all, read: errors.New("no answer"), want: policy.Waiting, says: "no answer"},
	} {
		t.Run(name, func(t *testing.T) {
			cached := fakeapi.New(tc.objects...).Connect()
			cached.Before = func(fakeapi.Call) error { return tc.read }
			got := evaluateOne(t, cached, tc.spec, tc.unwatched)
			assert.Equal(t, tc.want, got.Verdict, "%s: %s", tc.reason, got.Message)
			assert.Contains(t, got.Message, tc.says)
			if tc.want == policy.Waiting {
				assert.Contains(t, got.Message, "waiting for the policy to become ready: ")
				assert.NotZero(t, got.Until, "no object can wake the bind")
			}
			ignored := evaluateOne(t, cached, tc.spec+"\nfailurePolicy: Ignore", tc.unwatched)
			assert.Equal(t, tc.want != policy.Allowed, ignored.Verdict == policy.Ignored, "%s: %s", ignored.Verdict, ignored.Message)
		})
	}
}

// A policy that does not select a Namespace does not fail because it is large.
func TestPreFlight_LargeNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, policyOf(t, "a", rejectAll+"\nmatchConstraints: {namespaceSelector: {matchLabels: {team: a}}}"))
		bc := w.bind()
		for team, rejects := range map[string]bool{"a": true, "b": false} {
			w.server.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
				Name: gen.DefaultNamespace, Labels: map[string]string{"team": team}, Annotations: map[string]string{"notes": strings.Repeat("x", policy.MaxObject)},
			}})
			synctest.Wait()
			_, err := w.preFlight(bc)
			assert.Equal(t, rejects, err != nil, "team %s: %v", team, err)
		}
	})
}
