// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/test/gen"
)

// fourClaims returns a pass that binds the claims a and b to volumes, and provisions those of c and d.
func fourClaims(t *testing.T) (*world, *Plugin, *framework.BindContext) {
	t.Helper()
	pod := gen.Pod("web", gen.UsesClaim("a"), gen.UsesClaim("b"), gen.UsesClaim("c"), gen.UsesClaim("d"))
	ofStatic, inStatic := gen.OfClass("static"), gen.VolumeOfClass("static")
	w := newWorld(local, static, claimNamed("a", ofStatic), claimNamed("b", ofStatic), claimNamed("c"), claimNamed("d"), volumeNamed("pv1", inStatic), volumeNamed("pv2", inStatic))
	p, bc := pluginIn(w), contextFor(pod)
	_, err := p.pass(t.Context(), bc)
	require.NoError(t, err)
	return w, p, bc
}

// Like kube-scheduler, write sets the claimRefs before selected-node.
func TestWrite_Order(t *testing.T) {
	w, p, bc := fourClaims(t)
	pl := planned(t, bc)
	before := []any{pl.static[0].volume.DeepCopy(), pl.static[0].claim.DeepCopy(), pl.dynamic[0].DeepCopy()}
	require.NoError(t, p.PreBind(t.Context(), bc))
	var order []string
	for _, p := range w.patches {
		order = append(order, p.name)
	}
	assert.Equal(t, []string{"pv1", "pv2", "c", "d"}, order)
	assert.Equal(t, []string{"a", "b"}, w.checks, "the claims are checked before the volumes are written")
	assert.Equal(t, []any{pl.static[0].volume, pl.static[0].claim, pl.dynamic[0]}, before, "the objects in the cache do not change")
}

// The cache is behind the deletion of a volume, or the API server fails.
func TestWrite_Fails(t *testing.T) {
	for want, fails := range map[framework.Kind]error{
		framework.KindWait: apierrors.NewNotFound(corev1.Resource("persistentvolumes"), "pv2"), framework.KindInternal: errors.New("boom"),
	} {
		w, p, bc := fourClaims(t)
		w.fail = func(name string) error {
			if name == "pv2" {
				return fails
			}
			return nil
		}
		err := p.PreBind(t.Context(), bc)
		require.ErrorIs(t, err, fails)
		assert.True(t, frameworktest.IsKind(err, want), "%v", err)
		assert.Equal(t, "PersistentVolume pv2", framework.AsError(Name, err).Object.String())
		assert.Len(t, w.patches, 2, "nothing is written after a failure")
	}
}

// TestWrite_CacheIsBehind: the cache can hold a deleted claim. A volume that is bound to a deleted claim cannot be used again.
// After a write of the attempt, selected-node can be missing because the cache is behind, or because the provisioner has removed it.
func TestWrite_CacheIsBehind(t *testing.T) {
	replaced := theClaim(gen.UID("claim-2"), gen.Version("30"))
	written := theClaim(gen.SelectedNode("node-a"), gen.Version("30"))
	free := volumeNamed("pv")
	cases := map[string]struct {
		reason string
		volume *corev1.PersistentVolume
		// live is the claim of the API server. Nil means that there is none.
		live    *corev1.PersistentVolumeClaim
		written bool
		want    framework.Kind
		applied int
	}{
		"StaticGone":     {reason: "the API server has no claim", volume: free, want: framework.KindWait},
		"StaticReplaced": {reason: "the API server has another claim", volume: free, live: replaced, want: framework.KindWait},
		"First":          {reason: "the attempt has not written yet", live: theClaim(), applied: 1},
		"Behind":         {reason: "the API server has a newer claim", live: written, written: true, want: framework.KindWait},
		"Deleted":        {reason: "the API server has no claim", written: true, want: framework.KindWait},
		"Removed":        {reason: "the cache has the newest claim", live: theClaim(), written: true, want: refuse},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(local, theClaim())
			if tc.volume != nil {
				w.put(tc.volume)
			}
			p, bc := pluginIn(w), contextFor(thePod())
			_, err := p.pass(t.Context(), bc)
			require.NoError(t, err)
			w.lag()
			if tc.live == nil {
				w.server.Remove(theClaim())
			} else {
				w.put(tc.live)
			}
			bc.Written = tc.written
			err = p.PreBind(t.Context(), bc)
			assert.Equal(t, tc.applied, w.applied, tc.reason)
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			assert.True(t, frameworktest.IsKind(err, tc.want), "%s: %v", tc.reason, err)
		})
	}
}
