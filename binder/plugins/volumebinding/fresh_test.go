// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

// lacking binds a pod with a claim that no volume in the cache fits. The cache can be behind the
// API server.
type lacking struct {
	cached, live *world
	p            *Plugin
}

func newLacking(t *testing.T, more ...client.Object) *lacking {
	t.Helper()
	// The volumes need more than one page.
	objects := append([]client.Object{theNode(), static, theClaim(gen.OfClass("static"))}, more...)
	for i := range 5 {
		objects = append(objects, volumeNamed(fmt.Sprintf("other-%d", i)))
	}
	l := &lacking{cached: newWorld(objects...), live: newWorld(objects...)}
	l.p = pluginBetween(l.cached, l.live)
	return l
}

// bind runs PreFlight for a pod with the UID.
func (l *lacking) bind(t *testing.T, uid types.UID) error {
	t.Helper()
	_, err := l.p.preFlight(t.Context(), contextFor(thePod(gen.UID(uid))))
	return err
}

// start starts the bind of the pod "one" in the background, and waits until it blocks.
func (l *lacking) start(t *testing.T) <-chan error {
	t.Helper()
	result := make(chan error, 1)
	go func() { result <- l.bind(t, "one") }()
	synctest.Wait()
	return result
}

func (l *lacking) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

var newVolume = volumeNamed("pv", gen.VolumeOfClass("static"))

func TestSurvey_DoesNotRejectWhileTheCacheIsBehind(t *testing.T) {
	cases := map[string]struct {
		reason string
		before client.Object
	}{
		"NotCached": {reason: "the cache does not hold the volume that the scheduler chose"},
		"NotCachedAsItIs": {
			reason: "the volume in the cache is still in use",
			before: volumeNamed("pv", gen.Version("19"), gen.VolumeOfClass("static"), gen.ClaimRef(claimNamed("logs")), gen.VolumePhase(corev1.VolumeReleased)),
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLacking(t)
				if tc.before != nil {
					l.cached.put(tc.before)
				}
				l.live.put(newVolume)
				result := l.start(t)
				assert.Empty(t, result, "%s: the bind waits for the cache", tc.reason)
				l.cached.put(newVolume)
				require.NoError(t, <-result, tc.reason)

				l.live.put(volumeNamed("pv", gen.VolumeOfClass("static"), gen.ClaimRef(claimNamed("logs")), gen.Version("31")))
				l.cached.put(volumeNamed("pv", gen.VolumeOfClass("static"), gen.ClaimRef(claimNamed("logs")), gen.Version("31")))
				l.pass(surveyEvery)
				err := l.bind(t, "one")
				assert.True(t, framework.IsKind(err, framework.KindRefuse), "%v", err)
				assert.Equal(t, 2, l.live.metadataLists, "the second bind needs its own survey")
			})
		})
	}
}

// The cache holds a volume before the index does.
func TestSurvey_WaitsForTheIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLacking(t)
		l.live.put(newVolume)
		l.cached.paused = true
		l.cached.put(newVolume)
		result := l.start(t)
		assert.Empty(t, result)
		l.cached.free.OnAdd(newVolume, false)
		require.NoError(t, <-result)
	})
}

// A bind is neither rejected nor allowed while the cache stays behind.
func TestSurvey_CacheStaysBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLacking(t)
		l.live.put(newVolume)
		begin := time.Now()
		err := l.bind(t, "one")
		assert.True(t, framework.IsKind(err, framework.KindWait), "%v", err)
		assert.Equal(t, "PersistentVolumeClaim default/data", framework.AsError(Name, err).Object.String())
		assert.Equal(t, catchUp, time.Since(begin))
	})
}

// The cache never receives volumes that are deleted during a survey. They do not mean that the
// cache is behind.
func TestSurvey_IgnoresVolumesDeletedInTheMeantime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLacking(t)
		l.live.put(volumeNamed("short-lived"))
		result := l.start(t)
		l.live.remove(volumeNamed("short-lived"))
		err := <-result
		assert.True(t, framework.IsKind(err, framework.KindRefuse), "%v", err)

		for i := range surveyReads + 1 {
			l.live.put(volumeNamed(fmt.Sprintf("short-lived-%d", i)))
		}
		l.pass(surveyRest * catchUp)
		result = l.start(t)
		for i := range surveyReads + 1 {
			l.live.remove(volumeNamed(fmt.Sprintf("short-lived-%d", i)))
		}
		reads := l.live.count()
		err = <-result
		assert.True(t, framework.IsKind(err, framework.KindWait), "%v", err)
		assert.Less(t, l.live.count()-reads, 20, "the survey does not read many volumes one by one")
	})
}

// Many claims without a matching volume cause one list of all volumes every few seconds. Each bind
// is rejected in the end.
func TestSurvey_LimitsTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLacking(t)
		refused, waiting := 0, []types.UID(nil)
		for i := range 50 {
			waiting = append(waiting, types.UID(fmt.Sprint(i)))
		}
		round := func() {
			var again []types.UID
			for _, uid := range waiting {
				switch err := l.bind(t, uid); {
				case framework.IsKind(err, framework.KindRefuse):
					refused++
				case framework.IsKind(err, framework.KindWait):
					again = append(again, uid)
				default:
					t.Fatalf("the bind is neither rejected nor waiting: %v", err)
				}
			}
			waiting = again
		}
		round()
		assert.Equal(t, 1, refused, "the first bind does not wait")
		assert.Equal(t, 1, l.live.metadataLists)
		l.pass(surveyEvery - 1)
		round()
		assert.Equal(t, 1, l.live.metadataLists, "the next survey starts later")
		l.pass(1)
		round()
		assert.Equal(t, 50, refused, "one survey is enough for all earlier binds")
		assert.Equal(t, 2, l.live.metadataLists)
	})
}

// A survey in progress can miss a volume that is created now. The bind needs the next survey.
func TestSurvey_InProgressStartedTooEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLacking(t)
		gate := make(chan struct{})
		l.live.listing = func() { <-gate }
		first := l.start(t)
		begin := time.Now()
		err := l.bind(t, "two")
		assert.True(t, framework.IsKind(err, framework.KindWait), "%v", err)
		assert.Zero(t, time.Since(begin), "the bind does not wait for a survey that started too early")
		l.pass(surveyPatience)
		assert.True(t, framework.IsKind(<-first, framework.KindWait), "the time that a call waits is limited")
		l.live.put(newVolume)
		close(gate)
		l.pass(time.Minute)
		l.cached.put(newVolume)
		require.NoError(t, l.bind(t, "one"))
		require.NoError(t, l.bind(t, "two"))
	})
}

// A bind that arrived before a slow survey needs no second survey.
func TestSurvey_Slow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLacking(t)
		l.live.listing = func() { <-time.After(2 * time.Second) }
		assert.True(t, framework.IsKind(l.bind(t, "one"), framework.KindWait), "the pages take longer than a call waits")
		l.pass(10 * time.Second)
		assert.True(t, framework.IsKind(l.bind(t, "two"), framework.KindWait), "the pause after a slow survey is longer")
		assert.True(t, framework.IsKind(l.bind(t, "one"), framework.KindRefuse))
		assert.Equal(t, 1, l.live.metadataLists)
	})
}

// A later bind of the same pod to the same node needs a new survey.
func TestSurvey_IsUsedOncePerBind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLacking(t)
		l.live.listing = func() { <-time.After(2 * time.Second) }
		assert.True(t, framework.IsKind(l.bind(t, "one"), framework.KindWait))
		l.pass(30 * time.Second)
		l.live.listing = nil
		l.cached.put(newVolume)
		require.NoError(t, l.bind(t, "one"))
		l.cached.remove(newVolume)
		assert.True(t, framework.IsKind(l.bind(t, "one"), framework.KindRefuse))
		assert.Equal(t, 2, l.live.metadataLists)
	})
}

func TestSurvey_Fails(t *testing.T) {
	cases := map[string]struct {
		reason string
		err    error
		want   framework.Kind
	}{
		"Passing":   {reason: "the failure is temporary, and the next call tries again", err: apierrors.NewServiceUnavailable("restarting"), want: framework.KindWait},
		"Permanent": {reason: "a failed survey does not prove that no volume exists", err: errors.New("boom"), want: framework.KindInternal},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLacking(t)
				l.live.listing = func() {
					l.live.mu.Lock()
					defer l.live.mu.Unlock()
					l.live.err = tc.err
				}
				err := l.bind(t, "one")
				assert.True(t, framework.IsKind(err, tc.want), "%s: %v", tc.reason, err)
				assert.Equal(t, "PersistentVolumeClaim default/data", framework.AsError(Name, err).Object.String())
				l.live.listing, l.live.err = nil, nil
				l.pass(surveyEvery)
				assert.True(t, framework.IsKind(l.bind(t, "one"), framework.KindRefuse), "the next survey succeeds")
			})
		})
	}
}

// The cache alone cannot prove that there is no capacity.
func TestSurvey_OfCapacities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLacking(t, gen.CSIDriver("csi.example.com", true), local)
		l.cached.put(theClaim(gen.OfClass("local"), gen.Requests("10Gi")))
		l.live.put(theClaim(gen.OfClass("local"), gen.Requests("10Gi")))
		room := gen.CSIStorageCapacity("room", "local", gen.Amount("20Gi"))
		room.ResourceVersion = "7"
		l.live.put(room)
		result := l.start(t)
		assert.Empty(t, result)
		l.cached.put(room)
		require.NoError(t, <-result)
	})
}

// A rejection that no other object can change needs no survey.
func TestSurvey_NotNeeded(t *testing.T) {
	l := newLacking(t)
	for name, claim := range map[string]*corev1.PersistentVolumeClaim{
		"Selected": theClaim(gen.OfClass("static"), gen.SelectedNode("node-a")),
		"Lost":     theClaim(gen.OfClass("static"), gen.ClaimPhase(corev1.ClaimLost)),
	} {
		l.cached.put(claim)
		l.live.put(claim)
		err := l.bind(t, types.UID(name))
		assert.True(t, framework.IsKind(err, framework.KindRefuse), "%v", err)
	}
	assert.Zero(t, l.live.metadataLists)
}
