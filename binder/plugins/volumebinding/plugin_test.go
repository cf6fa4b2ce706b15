// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

func TestPreFlight(t *testing.T) {
	ours := gen.ClaimRef(theClaim())
	here := gen.SelectedNode("node-a")
	provisioning := "PersistentVolumeClaim default/data: provisioning on node-a"
	binding := "PersistentVolumeClaim default/data: the PersistentVolume controller to bind it to PersistentVolume pv"
	const selectsNode = `{"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "node-a"}, "resourceVersion": "10"}}`
	cases := map[string]decideCase{
		"NoClaims": {reason: "a pod without claims has nothing to bind", objects: []client.Object{gen.Pod("web", gen.EmptyDir("tmp"))}},
		"Dynamic": {
			reason: "the volume has to be provisioned", objects: []client.Object{theClaim(gen.Annotation("keep", "me"))}, wait: provisioning,
			writes:  []string{"set selected-node of claim default/data to node-a and wait for provisioning"},
			patches: []patched{{kind: "PersistentVolumeClaim", name: "data", body: selectsNode}},
		},
		"DynamicWritten": {
			reason: "the provisioner is working", objects: []client.Object{theClaim(here, gen.Annotation(volume.AnnStorageProvisioner, "csi.example.com"))},
			wait: provisioning + " by csi.example.com",
		},
		"DynamicVolumeCreated": {
			reason: "the claim does not name its volume yet", objects: []client.Object{theClaim(here), volumeNamed("pv", ours)}, wait: provisioning,
		},
		"DynamicVolumeNotSeen": {
			reason: "the watch event of the volume has not arrived yet", objects: []client.Object{theClaim(here, gen.BoundToVolume("pv"))},
			wait: "PersistentVolumeClaim default/data: its PersistentVolume pv",
		},
		"Static": {
			reason: "a free volume fits", objects: []client.Object{theClaim(), volumeNamed("pv", gen.Label("keep", "me"), gen.Annotation("keep", "me"))}, wait: binding,
			writes: []string{"set the claimRef of PersistentVolume pv to claim default/data and wait until the claim is bound"},
			patches: []patched{{kind: "PersistentVolume", name: "pv", body: `{
				"metadata": {"annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}, "resourceVersion": "20"},
				"spec": {"claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": "data",
					"uid": "claim-data", "resourceVersion": "10"}}}`}},
		},
		"StaticWithoutUID": {
			reason: "a user has reserved the volume by name", objects: []client.Object{theClaim(), volumeNamed("pv", gen.ClaimRef(theClaim(gen.UID(""))))}, wait: binding,
			writes: []string{"set the claimRef of PersistentVolume pv to claim default/data and wait until the claim is bound"},
			patches: []patched{{kind: "PersistentVolume", name: "pv", body: `{
				"metadata": {"resourceVersion": "20"},
				"spec": {"claimRef": {"uid": "claim-data", "resourceVersion": "10"}}}`}},
		},
		"StaticWritten": {
			reason: "the PersistentVolume controller has not bound the claim yet", objects: []client.Object{theClaim(), volumeNamed("pv", ours)}, wait: binding,
		},
		"StaticNamed": {
			reason:  "the claim names the volume, but the controller has not finished",
			objects: []client.Object{theClaim(gen.NamesVolume("pv")), volumeNamed("pv", ours)}, wait: binding,
		},
		"StaticNamedElsewhere": {
			reason: "the node affinity of the volume has changed", about: "PersistentVolume pv", says: "excludes node",
			objects: []client.Object{theClaim(gen.NamesVolume("pv")), volumeNamed("pv", ours, gen.OnNode("node-b"))},
		},
		"Ephemeral": {
			reason: "upstream generic-ephemeral,with-pvc; another pod can name the claim, so the bind reserves it",
			writes: []string{"reserve the ReadWriteOncePod claim default/web-tmp"},
			objects: []client.Object{
				gen.Pod("web", gen.UID("pod-1"), gen.EphemeralVolume("tmp")),
				claimNamed("web-tmp", gen.AccessModes(corev1.ReadWriteOncePod), gen.BoundToVolume("pv"), gen.OwnedBy("Pod", "web", "pod-1")),
				volumeNamed("pv", gen.ClaimRef(claimNamed("web-tmp"))),
			},
		},
		"OnlyMissingWrites": {
			reason: "correct values are not written again", wait: binding,
			objects: []client.Object{
				thePod(gen.UsesClaim("logs"), gen.UsesClaim("more")), theClaim(), volumeNamed("pv", ours),
				claimNamed("logs", here), claimNamed("more", gen.Annotation("keep", "me")),
			},
			writes:  []string{"set selected-node of claim default/more to node-a and wait for provisioning"},
			patches: []patched{{kind: "PersistentVolumeClaim", name: "more", body: selectsNode}},
		},
		"OneOfTwoIsBound": {
			reason: "all claims have to be bound", wait: provisioning,
			objects: []client.Object{thePod(gen.UsesClaim("logs")), theClaim(here), claimNamed("logs", gen.BoundToVolume("pv")), volumeNamed("pv", gen.ClaimRef(claimNamed("logs")))},
		},
		"ProvisionerIsNoDriver": {
			reason: "the name of the provisioner is not a valid driver name", about: "PersistentVolumeClaim default/data", says: "static",
			objects: []client.Object{theClaim(gen.OfClass("static")), static},
		},
		"ImpossibleClass": {
			reason: "the API server does not validate the class of the beta annotation", about: "PersistentVolumeClaim default/data", says: "a/b",
			objects: []client.Object{theClaim(gen.Annotation(corev1.BetaStorageClassAnnotation, "a/b"))},
		},
	}
	for name, tc := range cases {
		tc.objects = append(tc.objects, local)
		t.Run(name, tc.check)
	}
}

// TestSetup_WakesByItsVolumesOnly: a change of another volume must not wake the bind, because many binds can
// wait while many volumes change.
func TestSetup_WakesByItsVolumesOnly(t *testing.T) {
	inStatic := gen.VolumeOfClass("static")
	cases := map[string]struct {
		objects []client.Object
		want    []string
	}{
		"Chosen":   {objects: []client.Object{theClaim(), volumeNamed("pv"), volumeNamed("pv2")}, want: []string{"pv"}},
		"Reserved": {objects: []client.Object{theClaim(), volumeNamed("pv", gen.ClaimRef(theClaim()))}, want: []string{"pv"}},
		"Bound":    {objects: []client.Object{theClaim(gen.BoundToVolume("pv")), volumeNamed("pv2")}, want: []string{"pv"}},
		"None":     {objects: []client.Object{theClaim(), volumeNamed("pv", inStatic)}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(append(tc.objects, local)...)
			reader, read := w.cache.Connect(), []string(nil)
			reader.Before = func(call fakeapi.Call) error {
				if call.Kind == "PersistentVolume" || call.Verb == "list" {
					read = append(read, call.Key.Name)
				}
				return nil
			}
			if err := pluginIn(w).SetupBindContextExtension(t.Context(), reader, contextFor(thePod())); err != nil {
				require.True(t, frameworktest.IsKind(err, refuse), "%v", err)
			}
			assert.Equal(t, tc.want, read)
		})
	}
}

func TestSetup_Fails(t *testing.T) {
	down := fakeapi.New().Connect()
	down.Before = func(fakeapi.Call) error { return errors.New("boom") }
	err := pluginIn(newWorld()).SetupBindContextExtension(t.Context(), down, contextFor(thePod()))
	assert.True(t, frameworktest.IsKind(err, framework.KindInternal), "%v", err)
	assert.Equal(t, "PersistentVolumeClaim default/data", framework.AsError(Name, err).Object.String())
}

// withoutVolumes is a cache from which each volume has just been deleted.
type withoutVolumes struct{ framework.Reader }

func (r withoutVolumes) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	if _, ok := into.(*corev1.PersistentVolume); ok {
		return apierrors.NewNotFound(corev1.Resource("persistentvolumes"), key.Name)
	}
	return r.Reader.Get(ctx, key, into, options...)
}

// TestSetup_VolumeDeleted: the event of the deletion came before the subscription to the volume.
func TestSetup_VolumeDeleted(t *testing.T) {
	w := newWorld(theNode(), theClaim(), local, volumeNamed("pv"))
	p, bc := pluginIn(w), contextFor(thePod())
	require.NoError(t, p.SetupBindContextExtension(t.Context(), withoutVolumes{w.cached}, bc))
	verdict, err := p.PreFlight(bc)
	require.NoError(t, err)
	assert.Empty(t, verdict.Writes)
	assert.Equal(t, bc.Now, verdict.Wait.Until)
	assert.Equal(t, "the volume to be read again", verdict.Wait.For)
}
