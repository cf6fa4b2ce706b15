// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/plugins/device"
	"github.com/prebind/prebind/binder/plugins/nodestate"
	"github.com/prebind/prebind/binder/plugins/resourceclaims"
	"github.com/prebind/prebind/binder/plugins/volumebinding"
	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/mutators/deviceinfo"
	"github.com/prebind/prebind/mutators/topology"
)

// shipped returns the plugins of Prebind and some of its mutators.
func shipped() *Registry {
	return &Registry{
		Mutators: []mutators.Registration{topology.Registration(), deviceinfo.Registration()},
		Plugins:  []framework.Registration{nodestate.Registration(), device.Registration(), resourceclaims.Registration(), volumebinding.Registration()},
	}
}

func defaults() *v1alpha1.PrebindConfiguration { return v1alpha1.Default(shipped().Components()) }

// granting returns a client whose access reviews return the result of allowed.
func granting(allowed func(a authorizationv1.ResourceAttributes) (bool, error)) kubernetes.Interface {
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
	return client
}

func TestCheckPermissions(t *testing.T) {
	c := defaults()
	c.Mutators = []string{"*", "device-info"}
	cases := map[string]struct {
		reason  string
		allowed func(a authorizationv1.ResourceAttributes) (bool, error)
		want    string
	}{
		"All":      {reason: "all permissions are granted", allowed: func(authorizationv1.ResourceAttributes) (bool, error) { return true, nil }},
		"NoAnswer": {reason: "a permission that cannot be checked counts as granted", allowed: func(authorizationv1.ResourceAttributes) (bool, error) { return false, errors.New("away") }},
		"Core":     {reason: "the manifests of another version lack a permission", allowed: func(a authorizationv1.ResourceAttributes) (bool, error) { return a.Resource != "nodes", nil }, want: "Prebind: the service account lacks permissions: get, list, watch nodes; apply the manifests"},
		"Namespace": {reason: "leases need permissions only in the namespace of Prebind", allowed: func(a authorizationv1.ResourceAttributes) (bool, error) {
			return a.Namespace == "" || a.Verb != "delete", nil
		}, want: "delete leases.coordination.k8s.io in own"},
		"Plugin": {
			reason: "the error names the plugin and the remedy", allowed: func(a authorizationv1.ResourceAttributes) (bool, error) {
				return a.Verb != "patch" || a.Group != "", nil
			},
			want: "PreBind plugin volumebinding: the service account lacks permissions: patch persistentvolumeclaims; patch persistentvolumes; apply its role, or switch it off with --prebind-plugins=…,-volumebinding",
		},
		"Subresource": {
			reason: "a subresource needs its own permission", allowed: func(a authorizationv1.ResourceAttributes) (bool, error) {
				return a.Subresource != "binding", nil
			},
			want: "patch resourceclaims/binding.resource.k8s.io",
		},
		"Mutator": {
			reason: "a mutator can need permissions", allowed: func(a authorizationv1.ResourceAttributes) (bool, error) { return a.Resource != "resourceclaims", nil },
			want: "mutator device-info: the service account lacks permissions",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			err := New(Options{Registry: shipped(), Client: granting(tc.allowed), Namespace: "own"}).CheckPermissions(t.Context(), c)
			if tc.want == "" {
				require.NoError(t, err, tc.reason)
				return
			}
			require.ErrorContains(t, err, tc.want, tc.reason)
			assert.NotContains(t, err.Error(), "\n")
		})
	}
}

// TestNeeds checks that a plugin that is off needs no permissions, and that arguments can require more permissions.
func TestNeeds(t *testing.T) {
	c, r := defaults(), shipped()
	c.PreBindPlugins = nil
	parts, err := needsOf(r, c, "own")
	require.NoError(t, err)
	require.Len(t, parts, 1, "only the core has needs")

	c.PreBindPlugins = []string{"resource-claims"}
	parts, err = needsOf(r, c, "own")
	require.NoError(t, err)
	slices := permission{Group: "resource.k8s.io", Resource: "resourceslices", Verb: "list"}
	assert.NotContains(t, parts[1].permissions, slices)
	args, err := framework.ArgumentsAs[*resourceclaims.Arguments](c.Arguments.Of("resource-claims"))
	require.NoError(t, err)
	args.Allocate = []string{"gpu"}
	parts, err = needsOf(r, c, "own")
	require.NoError(t, err)
	assert.Contains(t, parts[1].permissions, slices)
}

// TestShippedRoles checks that the role of a plugin grants list and watch for the kinds that it watches.
func TestShippedRoles(t *testing.T) {
	c := defaults()
	resources := map[string]string{
		"PersistentVolume": "persistentvolumes", "PersistentVolumeClaim": "persistentvolumeclaims", "StorageClass": "storageclasses",
		"CSIDriver": "csidrivers", "CSIStorageCapacity": "csistoragecapacities", "ConfigMap": "configmaps", "ResourceClaim": "resourceclaims",
		"ResourceSlice": "resourceslices", "DeviceClass": "deviceclasses",
	}
	core, err := framework.Shipped("base")
	require.NoError(t, err)
	for _, p := range shipped().Plugins {
		if p.Watches == nil {
			continue
		}
		own, err := p.Permissions(c.Arguments.Of(p.Name))
		require.NoError(t, err)
		permissions := append(permissionsOf(own, "own"), permissionsOf(core, "own")...)
		for _, example := range p.Watches(c.Arguments.Of(p.Name)) {
			kind := framework.KindOf(example)
			for _, verb := range []string{"list", "watch"} {
				assert.True(t, slices.ContainsFunc(permissions, func(p permission) bool {
					return p.Resource == resources[kind] && p.Verb == verb
				}), "%s may %s %s", p.Name, verb, kind)
			}
		}
	}
}

// A plugin that is on where it is permitted is omitted without its permission, unless the configuration
// names it.
func TestIfPermitted(t *testing.T) {
	optional := framework.Registration{
		Name: "optional", Description: "d", On: true, IfPermitted: true,
		Permissions: func(framework.Arguments) (framework.Permissions, error) { return framework.Shipped("plugins/device") },
		New: func(framework.Handle, framework.Arguments) (framework.PreBinder, error) {
			return kept{name: "optional"}, nil
		},
	}
	for name, tc := range map[string]struct {
		reason  string
		plugins []string
		granted bool
		fails   error
		want    []string
		says    string
	}{
		"NoAnswer":    {reason: "the API server does not respond: the permission may be missing", plugins: []string{"*"}, fails: errors.New("unavailable")},
		"Granted":     {reason: "the permission is there", plugins: []string{"*"}, granted: true, want: []string{"optional"}},
		"NotGranted":  {reason: "the plugin is omitted", plugins: []string{"*"}},
		"ByName":      {reason: "the permission is there", plugins: []string{"optional"}, granted: true, want: []string{"optional"}},
		"Required":    {reason: "a plugin that is named is required", plugins: []string{"optional"}, says: "PreBind plugin optional: the service account lacks permissions"},
		"AllAndNamed": {reason: "a plugin that is named is required", plugins: []string{"*", "optional"}, says: "apply its role, or remove it from --prebind-plugins"},
		"Off":         {reason: "the plugin is off", plugins: []string{"*", "-optional"}, granted: true},
	} {
		t.Run(name, func(t *testing.T) {
			client := granting(func(a authorizationv1.ResourceAttributes) (bool, error) {
				return tc.granted || a.Resource != "configmaps", tc.fails
			})
			a := newAssembly(t, client, optional)
			c := v1alpha1.Default(a.o.Registry.Components())
			c.PreBindPlugins = tc.plugins
			err := a.CheckPermissions(t.Context(), c)
			if tc.says != "" {
				require.ErrorContains(t, err, tc.says, tc.reason)
				return
			}
			require.NoError(t, err)
			got, err := a.plugins(t.Context(), c)
			require.NoError(t, err)
			assert.Equal(t, tc.want, namesOf(got), tc.reason)
		})
	}
}
