// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

// These tests run the plugin in the engine's loop.

// complete binds the claim as the PersistentVolume controller does.
func (w *world) complete(claim *corev1.PersistentVolumeClaim, name string) {
	fakeapi.Change(w.server, claim, "controller", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeName = name
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnBindCompleted, "yes")
		c.Status.Phase = corev1.ClaimBound
	})
}

// Exactly one pod gets the volume. The other pod is rejected, or gets another volume.
func TestBind_TwoPodsOneVolume(t *testing.T) {
	for name, volumes := range map[string]int{"Rejected": 1, "Another": 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				one := gen.Pod("one", gen.UID("one"), gen.UsesClaim("c1"))
				two := gen.Pod("two", gen.UID("two"), gen.UsesClaim("c2"))
				ofStatic := gen.OfClass("static")
				w := newWorld(one, two, theNode(), static, claimNamed("c1", ofStatic), claimNamed("c2", ofStatic))
				for i := range volumes {
					w.put(volumeNamed("pv"+strconv.Itoa(i), gen.VolumeOfClass("static")))
				}
				w.lag()
				first, second := start(t, newReplica(t, w), one), start(t, newReplica(t, w), two)
				synctest.Wait()
				assert.Equal(t, 1, w.applied, "both chose the same volume, and one write had an effect")
				w.catchUp()
				began := time.Now()
				synctest.Wait()
				pv, ok := fakeapi.Get(w.server, volumeNamed("pv0"))
				require.True(t, ok)
				winner, loser := first, second
				if pv.Spec.ClaimRef.Name == "c2" {
					winner, loser = second, first
				}
				w.complete(claimNamed(pv.Spec.ClaimRef.Name), "pv0")
				require.Nil(t, (<-winner).Err)
				if volumes == 1 {
					o := <-loser
					require.NotNil(t, o.Err)
					assert.Contains(t, o.Err.Error(), "no volume of StorageClass static fits on node node-a")
					assert.Less(t, time.Since(began), binder.Settle+time.Second/10)
					return
				}
				<-time.After(time.Second / 10)
				synctest.Wait()
				assert.Equal(t, 2, w.applied, "the change of the volume wakes the other bind")
				pv, ok = fakeapi.Get(w.server, volumeNamed("pv1"))
				require.True(t, ok)
				w.complete(claimNamed(pv.Spec.ClaimRef.Name), "pv1")
				require.Nil(t, (<-loser).Err)
			})
		})
	}
}

// TestBind_VolumeBecomesAvailable: the PersistentVolume controller has not handled the volume yet. A rejection waits a second for the cache.
func TestBind_VolumeBecomesAvailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inStatic := gen.VolumeOfClass("static")
		w := newWorld(thePod(), theNode(), theClaim(gen.OfClass("static")), static, volumeNamed("pv", inStatic, gen.VolumePhase(corev1.VolumePending)))
		outcome := start(t, newReplica(t, w), thePod())
		<-time.After(time.Second / 2)
		require.Empty(t, w.patches)
		w.put(volumeNamed("pv", inStatic, gen.Version("30")))
		<-time.After(time.Second)
		require.Equal(t, 1, w.applied)
		w.complete(theClaim(), "pv")
		require.Nil(t, (<-outcome).Err)
	})
}
