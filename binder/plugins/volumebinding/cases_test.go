// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

// The PersistentVolume controller would never bind the claim to a volume with other access modes that names it.
func TestPreBind_ReservedWithOtherModes(t *testing.T) {
	other := volumeNamed("pv", gen.ClaimRef(theClaim(gen.UID(""))), gen.VolumeAccessModes(corev1.ReadOnlyMany))
	w := newWorld(thePod(), theNode(), theClaim(gen.AccessModes(corev1.ReadWriteOnce)), local, other, volumeNamed("good"))
	p, bc := pluginIn(w), contextFor(thePod())
	_, err := p.pass(t.Context(), bc)
	require.NoError(t, err)
	require.NoError(t, p.PreBind(t.Context(), bc))
	require.Len(t, w.patches, 1)
	assert.Equal(t, "good", w.patches[0].name)
}

// A claim that the pod names in two ways must be that of its ephemeral volume.
func TestPreFlight_EphemeralByName(t *testing.T) {
	foreign := claimNamed("web-tmp", gen.BoundToVolume("pv"))
	pod := gen.Pod("web", gen.UID("pod-1"), gen.UsesClaim("web-tmp"), gen.EphemeralVolume("tmp"))
	_, err := pluginIn(newWorld(pod, theNode(), foreign, local, volumeNamed("pv", gen.ClaimRef(foreign)))).pass(t.Context(), contextFor(pod))
	require.ErrorContains(t, err, "was not created for")
	v, err := pluginIn(newWorld(pod, theNode(), local)).pass(t.Context(), contextFor(pod))
	require.NoError(t, err)
	assert.Contains(t, v.Wait.For, "the ephemeral volume controller")
}

// The message names the first cause that a person has to act on.
func TestPreFlight_EphemeralMessages(t *testing.T) {
	pod := gen.Pod("web", gen.UID("pod-1"), gen.EphemeralVolume("tmp"))
	for want, claim := range map[string]*corev1.PersistentVolumeClaim{
		"too large":     claimNamed("web-tmp", gen.OwnedBy("Pod", "web", "pod-1"), gen.Selects("a", strings.Repeat("x", 9000))),
		"being deleted": claimNamed("web-tmp", gen.OwnedBy("Pod", "web", "pod-0"), gen.Terminating()),
	} {
		_, err := pluginIn(newWorld(pod, theNode(), claim, local)).pass(t.Context(), contextFor(pod))
		assert.ErrorContains(t, err, want)
	}
}

// A pod can use the claim as its ephemeral volume.
func TestExclusive_Ephemeral(t *testing.T) {
	claim := claimNamed("app-tmp", gen.AccessModes(corev1.ReadWriteOncePod), gen.BoundToVolume("pv"), gen.OwnedBy("Pod", "app", "app"))
	running := gen.Pod("app", gen.UID("app"), gen.EphemeralVolume("tmp"), gen.BoundTo("node-b"))
	web := gen.Pod("web", gen.UID("pod-1"), gen.UsesClaim("app-tmp"))
	p, bc := pluginIn(newWorld(running, web, theNode(), claim, volumeNamed("pv", gen.ClaimRef(claim)))), contextFor(web)
	_, err := p.pass(t.Context(), bc)
	require.NoError(t, err)
	require.ErrorContains(t, p.PreBind(t.Context(), bc), "pod app on node node-b uses the ReadWriteOncePod claim")
}

// atSecondPass calls the function when the second pass reads the CSINode, after it has read the index of free volumes.
type atSecondPass struct {
	framework.Reader
	passes int
	call   func()
}

func (r *atSecondPass) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	if _, ok := into.(*storagev1.CSINode); ok {
		if r.passes++; r.passes == 2 {
			r.call()
		}
	}
	return r.Reader.Get(ctx, key, into, opts...)
}

// A volume that becomes available while the pass is made does not wake the bind.
func TestBind_VolumeChangesDuringPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inStatic := gen.VolumeOfClass("static")
		w := newWorld(thePod(), theNode(), theClaim(gen.OfClass("static")), static, volumeNamed("pv", inStatic, gen.VolumePhase(corev1.VolumePending)))
		w.cached = &atSecondPass{Reader: w.cached, call: func() { w.put(volumeNamed("pv", inStatic, gen.Version("30"))) }}
		outcome := start(t, newReplica(t, w), thePod())
		<-time.After(2 * again)
		assert.Equal(t, 1, w.applied)
		<-outcome
	})
}
