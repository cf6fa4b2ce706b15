// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/plugintest"
)

// waiting is a wait for a plan.
type waiting struct {
	*plugintest.Running
	*world
	bc *framework.BindContext
}

// begin starts a wait for the plan, after its writes.
func begin(ctx context.Context, w *world, pl plan) *waiting {
	pod := thePod()
	w.put(pod)
	w.put(theNode())
	for _, m := range pl.static {
		w.put(m.claim)
		w.put(m.volume)
	}
	for _, claim := range pl.dynamic {
		w.put(claim)
	}
	p, bc := pluginIn(w), contextFor(pod)
	return &waiting{world: w, bc: bc, Running: plugintest.Start(func() error { return p.wait(ctx, bc, pl) })}
}

func writtenStatic() plan {
	return plan{static: []match{{claim: theClaim(), volume: volumeNamed("pv", gen.ClaimRef(theClaim()))}}}
}

func writtenDynamic() plan {
	return plan{dynamic: []*corev1.PersistentVolumeClaim{theClaim(gen.SelectedNode("node-a"))}}
}

func TestWait_Static(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begin(t.Context(), newWorld(), writtenStatic())
		assert.Equal(t, "PersistentVolumeClaim default/data", w.bc.ReportedWait().Object.String(), "the wait is reported")
		assert.Contains(t, w.bc.ReportedWait().For, "pv")

		reads := w.count()
		<-time.After(time.Hour)
		ended, _ := w.Ended()
		require.False(t, ended)
		assert.Equal(t, reads, w.count(), "the wait reads nothing until an object changes")

		w.put(theClaim(gen.NamesVolume("pv"), gen.Version("11")))
		ended, _ = w.Ended()
		require.False(t, ended, "a claim that names the volume is not bound yet")
		assert.Greater(t, w.count(), reads, "the change wakes the wait")

		changed := time.Now()
		w.put(theClaim(gen.BoundToVolume("pv"), gen.Version("12")))
		ended, err := w.Ended()
		assert.True(t, ended)
		require.NoError(t, err)
		assert.Zero(t, time.Since(changed), "the wait ends immediately")
	})
}

func TestWait_Dynamic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begin(t.Context(), newWorld(), writtenDynamic())
		w.put(theClaim(gen.SelectedNode("node-a"), gen.BoundToVolume("made"), gen.Version("12")))
		ended, _ := w.Ended()
		require.False(t, ended, "the event of the volume has not arrived yet")
		w.put(volumeNamed("made", gen.ClaimRef(theClaim())))
		ended, err := w.Ended()
		assert.True(t, ended, "a change of the volume that the claim names wakes the wait")
		require.NoError(t, err)
	})
}

func TestWait_ForAllClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pl := writtenStatic()
		pl.dynamic = []*corev1.PersistentVolumeClaim{claimNamed("logs", gen.SelectedNode("node-a"))}
		w := begin(t.Context(), newWorld(volumeNamed("made", gen.ClaimRef(claimNamed("logs")))), pl)
		w.put(claimNamed("logs", gen.SelectedNode("node-a"), gen.BoundToVolume("made")))
		ended, _ := w.Ended()
		require.False(t, ended, "only one of two claims is bound")
		w.put(theClaim(gen.BoundToVolume("pv")))
		ended, err := w.Ended()
		assert.True(t, ended, "both")
		require.NoError(t, err)
	})
}

func TestWait_AllClaimsAreBound(t *testing.T) {
	pl := plan{static: []match{{claim: theClaim(gen.BoundToVolume("pv")), volume: volumeNamed("pv", gen.ClaimRef(theClaim()))}}}
	synctest.Test(t, func(t *testing.T) {
		ended, err := begin(t.Context(), newWorld(), pl).Ended()
		assert.True(t, ended, "the first check ends the wait")
		require.NoError(t, err)
	})
}

func TestWait_Ends(t *testing.T) {
	cases := map[string]struct {
		reason string
		plan   func() plan
		event  func(w *waiting)
		want   framework.Kind
		about  string
	}{
		"PodDeleted": {
			reason: "the pod no longer exists", plan: writtenStatic,
			event: func(w *waiting) { w.remove(thePod()) },
			want:  framework.KindStale, about: "Pod default/web",
		},
		"PodReplaced": {
			reason: "another pod has the same name", plan: writtenStatic,
			event: func(w *waiting) { w.put(thePod(gen.UID("pod-2"))) },
			want:  framework.KindStale, about: "Pod default/web",
		},
		"PodTerminating": {
			reason: "the pod is being deleted", plan: writtenStatic,
			event: func(w *waiting) { w.put(thePod(gen.Terminating())) },
			want:  framework.KindStale, about: "Pod default/web",
		},
		"PodBound": {
			reason: "another client bound the pod", plan: writtenStatic,
			event: func(w *waiting) { w.put(thePod(gen.BoundTo("node-b"))) },
			want:  framework.KindStale, about: "Pod default/web",
		},
		"NodeDeleted": {
			reason: "the node does not exist", plan: writtenDynamic,
			event: func(w *waiting) { w.remove(theNode()) },
			want:  framework.KindRefuse, about: "Node node-a",
		},
		"ClaimDeleted": {
			reason: "the claim is gone", plan: writtenDynamic,
			event: func(w *waiting) { w.remove(theClaim()) },
			want:  framework.KindRefuse, about: "PersistentVolumeClaim default/data",
		},
		"ClaimReplaced": {
			reason: "another claim has the same name", plan: writtenDynamic,
			event: func(w *waiting) {
				w.put(theClaim(gen.UID("claim-2"), gen.SelectedNode("node-a"), gen.Version("50")))
			},
			want: framework.KindRefuse, about: "PersistentVolumeClaim default/data",
		},
		"SelectedNodeRemoved": {
			reason: "the provisioner requests another node", plan: writtenDynamic,
			event: func(w *waiting) { w.put(theClaim(gen.Version("50"))) },
			want:  framework.KindRefuse, about: "PersistentVolumeClaim default/data",
		},
		"VolumeDeleted": {
			reason: "the volume is gone", plan: writtenStatic,
			event: func(w *waiting) { w.remove(volumeNamed("pv")) },
			want:  framework.KindRefuse, about: "PersistentVolume pv",
		},
		"ClaimRefReset": {
			reason: "another client removed the claimRef", plan: writtenStatic,
			event: func(w *waiting) { w.put(volumeNamed("pv", gen.Version("50"))) },
			want:  framework.KindRefuse, about: "PersistentVolume pv",
		},
		"NodeLabelsChanged": {
			reason: "the check uses the current node",
			plan: func() plan {
				return plan{static: []match{{
					claim:  theClaim(gen.NamesVolume("pv")),
					volume: volumeNamed("pv", gen.ClaimRef(theClaim()), gen.OnNodesWith(corev1.LabelTopologyZone, "z1")),
				}}}
			},
			event: func(w *waiting) { w.put(theNode(gen.Zone("z2"))) },
			want:  framework.KindRefuse, about: "PersistentVolume pv",
		},
		"SecondClaimIsFinal": {
			reason: "a final state of one claim ends the wait, although another claim still waits",
			plan: func() plan {
				pl := writtenStatic()
				pl.dynamic = []*corev1.PersistentVolumeClaim{claimNamed("logs", gen.SelectedNode("node-a"))}
				return pl
			},
			event: func(w *waiting) { w.put(claimNamed("logs", gen.Version("50"))) },
			want:  framework.KindRefuse, about: "PersistentVolumeClaim default/logs",
		},
		"APIServerFails": {
			reason: "an unreadable node cannot be checked", plan: writtenStatic,
			event: func(w *waiting) {
				w.err = errors.New("boom")
				w.put(theClaim())
			},
			want: framework.KindInternal, about: "Pod default/web",
		},
		"APIServerOverloaded": {
			reason: "the failure is temporary, and the next call continues", plan: writtenStatic,
			event: func(w *waiting) {
				w.err = apierrors.NewServiceUnavailable("restarting")
				w.put(theClaim())
			},
			want: framework.KindWait, about: "Pod default/web",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := begin(t.Context(), newWorld(), tc.plan())
				ended, err := w.Ended()
				require.False(t, ended, "the bind waits before the event: %v", err)
				tc.event(w)
				ended, err = w.Ended()
				require.True(t, ended, tc.reason)
				require.Error(t, err, tc.reason)
				assert.True(t, framework.IsKind(err, tc.want), "%s: %v", tc.reason, err)
				assert.Equal(t, tc.about, framework.AsError(Name, err).Object.String())
				assert.Empty(t, w.patches, "the plugin undoes no writes")
			})
		})
	}
}

func TestWait_EndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over := errors.New("over")
		ctx, cancel := context.WithCancelCause(t.Context())
		w := begin(ctx, newWorld(), writtenDynamic())
		cancel(over)
		ended, err := w.Ended()
		assert.True(t, ended)
		require.ErrorIs(t, err, over, "the wait returns the cause of the context")
	})
}
