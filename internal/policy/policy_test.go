// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"cmp"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/internal/policy"
)

// objects are Objects in memory, by the name or path of the resource.
type objects struct {
	resources map[string][]client.Object
	err       error
	reads     []string
	// before is called before each read.
	before func()
}

func (o *objects) Read(_ context.Context, r *policy.Resource, namespace, name string) (policy.List, error) {
	if o.before != nil {
		o.before()
	}
	as := cmp.Or(r.Name, r.Path)
	o.reads = append(o.reads, as+":"+namespace+"/"+name)
	var found []client.Object
	for _, object := range o.resources[as] {
		if !r.ByName && !r.ByNamespace || object.GetNamespace() == namespace && (r.ByNamespace || object.GetName() == name) {
			found = append(found, object)
		}
	}
	if o.err != nil {
		return policy.List{}, o.err
	}
	return policy.NewList(found)
}

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func claimVolume(name, claim string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}
}

func subject() *policy.Subject {
	return &policy.Subject{
		Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "demo"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{
			claimVolume("data", "data-0"), claimVolume("missing", "data-1"),
		}}},
		Node: &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node-1", CreationTimestamp: metav1.NewTime(now), Labels: map[string]string{"nvidia.com/gpu.clique": "a.1"}},
			Status:     corev1.NodeStatus{Allocatable: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}},
		},
		Binding: &corev1.Binding{Target: corev1.ObjectReference{Name: "node-1"}},
		Now:     now, Since: now,
	}
}

// evaluate compiles a policy with the spec, and evaluates it.
func evaluate(t testing.TB, spec string, s *policy.Subject, o policy.Objects) policy.Result {
	t.Helper()
	r, err := compile(t, spec).Evaluate(t.Context(), s, o)
	require.NoError(t, err)
	return r
}
