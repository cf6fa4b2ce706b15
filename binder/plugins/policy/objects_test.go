// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"strings"
	"testing"
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

// entryOf returns an entry whose resources cannot be read because of the error.
func entryOf(c *policy.Compiled, unwatched error) *entry {
	e := &entry{compiled: c, reads: map[*policy.Resource]*framework.Selection{}, unwatched: map[*policy.Resource]error{}}
	for _, r := range c.Reads() {
		e.reads[r], e.unwatched[r] = selectionOf(r), unwatched
	}
	return e
}

// evaluateOne evaluates one policy for the pod, with the reader as the cache.
func evaluateOne(t *testing.T, cached framework.Reader, pod *corev1.Pod, spec string, unwatched error) policy.Result {
	t.Helper()
	b := policyOf(t, "a", spec)
	c, err := policy.Compile(b, policy.Options{})
	require.NoError(t, err)
	node := gen.Node("node-a")
	bc := &framework.BindContext{Pod: pod, Node: node, Binding: gen.Binding(pod, node.Name), Now: time.Now()}
	p := &Plugin{h: framework.Handle{Namespace: "prebind-system"}}
	applied, err := p.evaluate(t.Context(), []*entry{entryOf(c, unwatched)}, cached, subjectOf(bc))
	require.NoError(t, err)
	return applied[0]
}

// A policy that cannot be evaluated follows its failure policy, whatever the reason.
func TestObjects_FailurePolicy(t *testing.T) {
	const all = `
resources: [{name: limits, apiVersion: v1, kind: ConfigMap, labelSelector: {}}]
validations: [{expression: "resources.limits.all(l, l.data['a'].size() > 0)"}]`
	with := func(n, size int) []client.Object {
		var objects []client.Object
		for i := range n {
			objects = append(objects, configMap(fmt.Sprintf("limits-%d", i), size))
		}
		return objects
	}
	own := configMap("records", 1)
	own.Namespace = "prebind-system"
	for name, tc := range map[string]struct {
		reason    string
		objects   []client.Object
		spec      string
		unwatched error
		read      error
		want      policy.Verdict
		says      string
	}{
		"Small":     {reason: "the cache has the objects", objects: with(2, 1000), spec: all, want: policy.Allowed},
		"Own":       {reason: "policies cannot read Prebind's own objects", objects: []client.Object{own}, spec: strings.Replace(all, "resources.limits.all(l, l.data['a'].size() > 0)", "resources.limits == []", 1), want: policy.Allowed},
		"Unwatched": {reason: "the watch can begin later", spec: all, unwatched: errors.New("spec.resources[limits]: forbidden"), want: policy.Waiting, says: "spec.resources[limits]: forbidden"},
		"Read":      {reason: "the next read can succeed", spec: all, read: errors.New("no answer"), want: policy.Waiting, says: "no answer"},
	} {
		t.Run(name, func(t *testing.T) {
			cached := fakeapi.New(tc.objects...).Connect()
			cached.Before = func(fakeapi.Call) error { return tc.read }
			got := evaluateOne(t, cached, gen.Pod("web"), tc.spec, tc.unwatched)
			assert.Equal(t, tc.want, got.Verdict, "%s: %s", tc.reason, got.Message)
			assert.Contains(t, got.Message, tc.says)
			if tc.want == policy.Waiting {
				assert.Contains(t, got.Message, "waiting for the policy to become ready: ")
				assert.NotZero(t, got.Until, "no object can wake the bind")
			}
			ignored := evaluateOne(t, cached, gen.Pod("web"), tc.spec+"\nfailurePolicy: Ignore", tc.unwatched)
			assert.Equal(t, tc.want != policy.Allowed, ignored.Verdict == policy.Ignored, "%s: %s", ignored.Verdict, ignored.Message)
		})
	}
}
