// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package frameworktest

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/notify"
	"github.com/prebind/prebind/test/gen"
)

// spy is a test that records its errors.
type spy struct {
	testing.TB
	errors []string
}

func (s *spy) Helper() {}

func (s *spy) Errorf(format string, args ...any) {
	s.errors = append(s.errors, fmt.Sprintf(format, args...))
}

// reading returns a plugin of that name that reads a ConfigMap.
func reading(name string, watches ...client.Object) framework.Registration {
	decide := func(ctx context.Context, cache framework.Reader, bc *framework.BindContext) (framework.Verdict, error) {
		_, err := framework.Get(ctx, cache, &corev1.ConfigMap{}, bc.Pod.Namespace, "settings")
		return framework.Verdict{}, err
	}
	return framework.Registration{
		Name: "reading", Watches: watches,
		New: func(framework.Handle, framework.Arguments) (framework.Plugin, error) {
			return framework.NewPlugin(name, decide), nil
		},
	}
}

func TestNew_ReportsMistakes(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		r      framework.Registration
		want   []string
	}{
		"Correct":   {reason: "the plugin watches what it reads", r: reading("reading", &corev1.ConfigMap{})},
		"Unwatched": {reason: "the read fails in Prebind", r: reading("reading", &corev1.Secret{}), want: []string{"the plugin reads ConfigMap, and Registration.Watches does not contain this kind"}},
		"Name":      {reason: "Prebind does not start", r: reading("other", &corev1.ConfigMap{}), want: []string{`the plugin "reading" must be named as registered, got "other"`}},
	} {
		t.Run(name, func(t *testing.T) {
			pod, node := gen.Pod("web"), gen.Node("node-a")
			s := &spy{TB: t}
			c := New(s, tc.r, nil, pod, node)
			verdict, err := c.PreFlight(t.Context(), c.Context(pod, node))
			assert.NoError(t, err)
			assert.Zero(t, verdict)
			assert.Equal(t, tc.want, s.errors, tc.reason)
		})
	}
}

// A plugin that adds a selection reads it by values that the API server does not select.
func TestNew_Selections(t *testing.T) {
	racks := framework.Selection{
		Name: "racks/pods", Example: &corev1.Pod{}, Namespace: "kube-system",
		Value: func(o client.Object) string { return o.GetLabels()["rack"] },
	}
	agent := func(name, namespace, rack string) *corev1.Pod {
		return gen.Pod(name, gen.InNamespace(namespace), gen.Label("rack", rack))
	}
	var h framework.Handle
	r := framework.Registration{Name: "only", New: func(given framework.Handle, _ framework.Arguments) (framework.Plugin, error) {
		h = given
		return framework.NewPlugin("only", func(context.Context, framework.Reader, *framework.BindContext) (framework.Verdict, error) {
			return framework.Verdict{}, nil
		}), nil
	}}
	s := &spy{TB: t}
	c := New(s, r, nil, agent("a", "kube-system", "r1"), agent("b", "kube-system", "r2"), agent("c", "shop", "r1"))
	read := func(reader framework.Reader) []string {
		var pods corev1.PodList
		assert.NoError(t, reader.List(t.Context(), &pods, racks.Where("r1")))
		var names []string
		for _, pod := range pods.Items {
			names = append(names, pod.Name)
		}
		return names
	}
	read(h.Cached)
	assert.Len(t, s.errors, 1, "the plugin has not added the selection")
	assert.NoError(t, h.Select(t.Context(), racks))
	assert.Equal(t, []string{"a"}, read(h.Cached))
	changes := c.Changes.Subscribe(notify.Selected(racks, "r1"))
	defer changes.Close()
	c.Put(agent("d", "kube-system", "r1"))
	assert.Len(t, changes.C(), 1, "a change wakes a wait")
	assert.Equal(t, []string{"a", "d"}, read(h.Cached))
	assert.Len(t, s.errors, 1)
	h.Keep(nil)
	read(h.Cached)
	assert.Len(t, s.errors, 2, "the plugin does not use it any more")
}

// The cache has no pods that have a node, as in Prebind.
func TestNew_Pods(t *testing.T) {
	pending, running := gen.Pod("pending"), gen.Pod("running", gen.BoundTo("node-a"))
	c := New(t, reading("reading", &corev1.ConfigMap{}), nil, pending, running)
	found := &corev1.PodList{}
	assert.NoError(t, c.Handle.Cached.List(t.Context(), found))
	assert.Len(t, found.Items, 1)
	assert.True(t, apierrors.IsNotFound(c.Handle.Cached.Get(t.Context(), client.ObjectKeyFromObject(running), &corev1.Pod{})))
}
