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

// lacking is a bind of a pod whose claim no volume of the cache fits. The cache may
// be behind the API server.
type lacking struct {
	cached, live *world
	p            *Plugin
}

func newLacking(t *testing.T, more ...client.Object) *lacking {
	t.Helper()
	// More than one page.
	objects := append([]client.Object{theNode(), static, theClaim(gen.OfClass("static"))}, more...)
	for i := range 5 {
		objects = append(objects, volumeNamed(fmt.Sprintf("other-%d", i)))
	}
	l := &lacking{cached: newWorld(objects...), live: newWorld(objects...)}
	l.p = pluginBetween(l.cached, l.live)
	return l
}

// bind is the PreFlight of the pod of this UID.
func (l *lacking) bind(t *testing.T, uid types.UID) error {
	t.Helper()
	_, err := l.p.preFlight(t.Context(), contextFor(thePod(gen.UID(uid))))
	return err
}

// start begins the bind of the pod "one" in the background, and waits until nothing
// moves any more.
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

func TestLackIsNotRefusedWhileTheCacheIsBehind(t *testing.T) {
	cases := map[string]struct {
		reason string
		before client.Object
	}{
		"NotCached": {reason: "the scheduler has seen a volume that the cache does not hold yet"},
		"NotCachedAsItIs": {
			reason: "the scheduler has seen that the volume is available again",
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
				assert.Empty(t, result, "%s: it waits for the cache", tc.reason)
				l.cached.put(newVolume)
				require.NoError(t, <-result, tc.reason)

				l.live.put(volumeNamed("pv", gen.VolumeOfClass("static"), gen.ClaimRef(claimNamed("logs")), gen.Version("31")))
				l.cached.put(volumeNamed("pv", gen.VolumeOfClass("static"), gen.ClaimRef(claimNamed("logs")), gen.Version("31")))
				l.pass(surveyEvery)
				err := l.bind(t, "one")
				assert.True(t, framework.IsKind(err, framework.KindRefuse), "%v", err)
				assert.Equal(t, 2, l.live.metadataLists, "what was proven for the first bind does not count for the second")
			})
		})
	}
}

// TestLackWaitsForTheIndex: the cache holds a volume before the index does.
func TestLackWaitsForTheIndex(t *testing.T) {
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

// TestCacheThatStaysBehind: its binds are neither refused nor allowed.
func TestCacheThatStaysBehind(t *testing.T) {
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

// TestVolumesDeletedDuringASurvey: they never come, and prove nothing.
func TestVolumesDeletedDuringASurvey(t *testing.T) {
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
		assert.Less(t, l.live.count()-reads, 20, "many volumes are not read one by one")
	})
}

// TestSurveysAreFew: many claims that cannot be served cost one list of all volumes
// every few seconds, and each bind comes to its refusal.
func TestSurveysAreFew(t *testing.T) {
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
					t.Fatalf("neither refused nor waiting: %v", err)
				}
			}
			waiting = again
		}
		round()
		assert.Equal(t, 1, refused, "the first did not have to wait")
		assert.Equal(t, 1, l.live.metadataLists)
		l.pass(surveyEvery - 1)
		round()
		assert.Equal(t, 1, l.live.metadataLists, "not so soon again")
		l.pass(1)
		round()
		assert.Equal(t, 50, refused, "one survey is for all that asked before")
		assert.Equal(t, 2, l.live.metadataLists)
	})
}

// TestSurveyInProgressIsTooEarly: it may have passed the place where a volume is made
// now. The bind needs the next one, which is remembered for it.
func TestSurveyInProgressIsTooEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLacking(t)
		gate := make(chan struct{})
		l.live.listing = func() { <-gate }
		first := l.start(t)
		begin := time.Now()
		err := l.bind(t, "two")
		assert.True(t, framework.IsKind(err, framework.KindWait), "%v", err)
		assert.Zero(t, time.Since(begin), "it does not wait for a survey that cannot answer it")
		l.pass(surveyPatience)
		assert.True(t, framework.IsKind(<-first, framework.KindWait), "a call waits for so long only")
		l.live.put(newVolume)
		close(gate)
		l.pass(time.Minute)
		l.cached.put(newVolume)
		require.NoError(t, l.bind(t, "one"))
		require.NoError(t, l.bind(t, "two"))
	})
}

// TestSlowSurvey: a bind that came before a survey that took long needs no other.
func TestSlowSurvey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLacking(t)
		l.live.listing = func() { <-time.After(2 * time.Second) }
		assert.True(t, framework.IsKind(l.bind(t, "one"), framework.KindWait), "the pages take longer than a call waits")
		l.pass(10 * time.Second)
		assert.True(t, framework.IsKind(l.bind(t, "two"), framework.KindWait), "surveys rest after a long one")
		assert.True(t, framework.IsKind(l.bind(t, "one"), framework.KindRefuse))
		assert.Equal(t, 1, l.live.metadataLists)
	})
}

// TestAnsweredBindAsksAnew: a survey for a bind does not answer a
// later bind of the same pod to the same node.
func TestAnsweredBindAsksAnew(t *testing.T) {
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

func TestSurveyFails(t *testing.T) {
	cases := map[string]struct {
		reason string
		err    error
		want   framework.Kind
	}{
		"Passing":   {reason: "the API server may answer the next time", err: apierrors.NewServiceUnavailable("restarting"), want: framework.KindWait},
		"Permanent": {reason: "nothing is refused on a guess", err: errors.New("boom"), want: framework.KindInternal},
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
				assert.True(t, framework.IsKind(l.bind(t, "one"), framework.KindRefuse), "the next one succeeds")
			})
		})
	}
}

// TestCapacityIsSurveyed: the cache alone cannot prove that there is no capacity.
func TestCapacityIsSurveyed(t *testing.T) {
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

// TestLackOfNothing: a refusal that no other object could change needs no survey.
func TestLackOfNothing(t *testing.T) {
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
