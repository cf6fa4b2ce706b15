// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/plugins/resourceclaims"
)

// granting answers every review by allowed.
func granting(allowed func(a authorizationv1.ResourceAttributes) (bool, error)) grants {
	client := fake.NewClientset()
	client.PrependReactor("create", "selfsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review, ok := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview)
		if !ok {
			return false, nil, nil
		}
		var err error
		review = review.DeepCopy()
		review.Status.Allowed, err = allowed(*review.Spec.ResourceAttributes)
		return true, review, err
	})
	return grants{client: client}
}

func TestGrants(t *testing.T) {
	s := defaultSettings(defaultServeOptions().registry)
	s.Mutators = []string{"*", "device-info"}
	parts, err := needsOf(s, "own")
	require.NoError(t, err)
	cases := map[string]struct {
		reason  string
		allowed func(a authorizationv1.ResourceAttributes) (bool, error)
		want    string
	}{
		"All":      {reason: "nothing is missing", allowed: func(authorizationv1.ResourceAttributes) (bool, error) { return true, nil }},
		"NoAnswer": {reason: "what is not known is nobody's fault", allowed: func(authorizationv1.ResourceAttributes) (bool, error) { return false, errors.New("away") }},
		"Core":     {reason: "the manifests are another version's", allowed: func(a authorizationv1.ResourceAttributes) (bool, error) { return a.Resource != "nodes", nil }, want: "the service account of Prebind may not get, list, watch nodes: apply the manifests"},
		"Namespace": {reason: "leases are in the own namespace", allowed: func(a authorizationv1.ResourceAttributes) (bool, error) {
			return a.Namespace == "" || a.Verb != "delete", nil
		}, want: "delete leases.coordination.k8s.io in own"},
		"Plugin": {
			reason: "the plugin is named, and the way out", allowed: func(a authorizationv1.ResourceAttributes) (bool, error) {
				return a.Verb != "patch" || a.Group != "", nil
			},
			want: "the PreBind plugin volumebinding lacks permissions: the service account of Prebind may not patch persistentvolumeclaims; patch persistentvolumes: apply its role, or switch it off by --prebind-plugins=…,-volumebinding",
		},
		"Subresource": {
			reason: "a subresource is another thing", allowed: func(a authorizationv1.ResourceAttributes) (bool, error) {
				return a.Subresource != "binding", nil
			},
			want: "may not patch resourceclaims/binding.resource.k8s.io",
		},
		"Mutator": {
			reason: "a mutator may have needs as well", allowed: func(a authorizationv1.ResourceAttributes) (bool, error) { return a.Resource != "resourceclaims", nil },
			want: "the mutator device-info lacks permissions",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			err := granting(tc.allowed).checkAll(t.Context(), parts)
			if tc.want == "" {
				require.NoError(t, err, tc.reason)
				return
			}
			require.ErrorContains(t, err, tc.want, tc.reason)
			assert.NotContains(t, err.Error(), "\n")
		})
	}
}

// A plugin that is off needs nothing, and one that does more needs more.
func TestNeeds(t *testing.T) {
	s := defaultSettings(defaultServeOptions().registry)
	s.PreBindPlugins = nil
	parts, err := needsOf(s, "own")
	require.NoError(t, err)
	require.Len(t, parts, 1, "the core")

	s.PreBindPlugins = []string{"resource-claims"}
	parts, err = needsOf(s, "own")
	require.NoError(t, err)
	slices := Permission{Group: "resource.k8s.io", Resource: "resourceslices", Verb: "list"}
	assert.NotContains(t, parts[1].permissions, slices)
	args, err := framework.ArgumentsAs[*resourceclaims.Arguments](s.argumentsOf("resource-claims"))
	require.NoError(t, err)
	args.Allocate = []string{"gpu"}
	parts, err = needsOf(s, "own")
	require.NoError(t, err)
	assert.Contains(t, parts[1].permissions, slices)
}

// TestShippedRoles: what a plugin watches, by its list, its role lets it watch.
func TestShippedRoles(t *testing.T) {
	s := defaultSettings(defaultServeOptions().registry)
	resources := map[string]string{
		"PersistentVolume": "persistentvolumes", "PersistentVolumeClaim": "persistentvolumeclaims", "StorageClass": "storageclasses",
		"CSIDriver": "csidrivers", "CSIStorageCapacity": "csistoragecapacities", "ConfigMap": "configmaps", "ResourceClaim": "resourceclaims",
		"ResourceSlice": "resourceslices", "DeviceClass": "deviceclasses",
	}
	core, err := framework.Shipped("base")
	require.NoError(t, err)
	for _, p := range s.registry.plugins {
		if p.Watches == nil {
			continue
		}
		own, err := p.Permissions(s.argumentsOf(p.Name))
		require.NoError(t, err)
		permissions := append(allOf(own, "own"), allOf(core, "own")...)
		for _, example := range p.Watches(s.argumentsOf(p.Name)) {
			kind := framework.KindOf(example)
			for _, verb := range []string{"list", "watch"} {
				assert.True(t, slices.ContainsFunc(permissions, func(p Permission) bool {
					return p.Resource == resources[kind] && p.Verb == verb
				}), "%s may %s %s", p.Name, verb, kind)
			}
		}
	}
}
