// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package license

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/test/fakeapi"
)

var node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}

func newPod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: name, UID: types.UID(name), Annotations: map[string]string{"license.prebind.dev/product": "matlab"},
	}}
}

// start returns a cluster with the pods, and the plugin with the number of seats.
func start(t *testing.T, seats int, pods ...string) (*frameworktest.Cluster, *plugin) {
	t.Helper()
	c := frameworktest.New(t, Registration(), &arguments{Seats: seats}, node)
	for _, name := range pods {
		c.Put(newPod(name))
	}
	p, ok := c.Plugin.(*plugin)
	require.True(t, ok)
	return c, p
}

// put stores the pod as bound, in the phase.
func put(c *frameworktest.Cluster, name string, phase corev1.PodPhase) {
	pod := newPod(name)
	pod.Spec.NodeName, pod.Status.Phase = node.Name, phase
	c.Put(pod)
	synctest.Wait()
}

// licenses returns "pod: number of marks" of each license.
func licenses(c *frameworktest.Cluster) []string {
	var all []string
	for _, license := range fakeapi.All(c.Server, &corev1.ConfigMap{}) {
		all = append(all, fmt.Sprintf("%s: %d", license.Data["pod"], len(marksOf(license))))
	}
	return all
}

func TestTidy_ReleasesTheLicenseAfterItsPodHasEnded(t *testing.T) {
	other := newPod("a")
	other.UID = "other"
	for name, end := range map[string]func(c *frameworktest.Cluster){
		"Succeeded": func(c *frameworktest.Cluster) { put(c, "a", corev1.PodSucceeded) },
		"Failed":    func(c *frameworktest.Cluster) { put(c, "a", corev1.PodFailed) },
		"Deleted":   func(c *frameworktest.Cluster) { c.Remove(newPod("a")) },
		"Replaced":  func(c *frameworktest.Cluster) { c.Put(other) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, p := start(t, 1, "a", "b")
				require.Nil(t, c.Post(t.Context(), newPod("a"), node.Name).Err)
				put(c, "a", corev1.PodRunning)
				assert.Equal(t, []string{"a: 0"}, licenses(c), "PostBind has confirmed it")
				time.AfterFunc(time.Minute, func() { assert.NoError(t, p.Tidy(t.Context())) })
				time.AfterFunc(2*time.Minute, func() { end(c); assert.NoError(t, p.Tidy(t.Context())) })
				began := time.Now()
				require.Nil(t, c.Post(t.Context(), newPod("b"), node.Name).Err)
				assert.GreaterOrEqual(t, time.Since(began), 2*time.Minute, "until then, pod a runs")
				require.NoError(t, p.Tidy(t.Context()))
				assert.Equal(t, []string{"b: 1"}, licenses(c), "pod b can still be bound")
			})
		})
	}
}

func TestPreBindRollBack_ReleasesTheLicense(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := start(t, 1, "a")
		require.Nil(t, c.Post(t.Context(), newPod("a"), node.Name).Err)
		<-time.After(framework.BindSettles - time.Second)
		assert.Equal(t, []string{"a: 1"}, licenses(c), "the API server can still bind the pod")
		<-time.After(time.Minute)
		assert.Empty(t, licenses(c), "the pod was not bound")
	})
}

// preFlight returns the context of an attempt to bind the pod, which needs a license.
func preFlight(t *testing.T, c *frameworktest.Cluster, pod, attempt string) *framework.BindContext {
	t.Helper()
	bc := c.Context(newPod(pod), node)
	bc.Attempt = attempt
	verdict, err := c.PreFlight(t.Context(), bc)
	require.NoError(t, err)
	require.Equal(t, []string{"take a license of matlab"}, verdict.Writes)
	return bc
}

// take takes a license for an attempt to bind pod a.
func take(t *testing.T, c *frameworktest.Cluster, attempt string) *framework.BindContext {
	t.Helper()
	bc := preFlight(t, c, "a", attempt)
	p, _ := c.Plugin.(*plugin)
	require.NoError(t, p.PreBind(t.Context(), bc))
	return bc
}

func TestMarks_AfterACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := start(t, 1, "a", "b")
		dead := take(t, c, "dead-1")
		marks, err := p.Marks(t.Context())
		require.NoError(t, err)
		require.Equal(t, []framework.Mark{dead.Mark()}, marks)
		time.AfterFunc(time.Minute, func() {
			for range 2 { // It is idempotent.
				assert.NoError(t, p.PreBindRollBack(t.Context(), dead.Mark()))
			}
		})
		began := time.Now()
		require.Nil(t, c.Post(t.Context(), newPod("b"), node.Name).Err)
		assert.GreaterOrEqual(t, time.Since(began), time.Minute, "until then, pod a has the license")
		require.NoError(t, p.PostBind(t.Context(), dead.Mark(), newPod("a")))
		assert.Equal(t, []string{"b: 1"}, licenses(c), "without a license, PostBind does nothing")
	})
}

func TestTwoReplicas_OnePod(t *testing.T) {
	c, p := start(t, 1)
	a := take(t, c, "one-1")
	b := take(t, c, "two-1")
	assert.Equal(t, []string{"a: 2"}, licenses(c), "the scheduler has repeated the Binding, and another replica got it")
	require.NoError(t, p.PreBindRollBack(t.Context(), b.Mark()))
	marks, err := p.Marks(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []framework.Mark{a.Mark()}, marks, "the other attempt can still bind the pod")
	require.NoError(t, p.PostBind(t.Context(), a.Mark(), newPod("a")))
	require.NoError(t, p.PreBindRollBack(t.Context(), a.Mark()))
	assert.Equal(t, []string{"a: 0"}, licenses(c), "the license is confirmed")
	verdict, err := c.PreFlight(t.Context(), b)
	require.NoError(t, err)
	assert.Empty(t, verdict.Writes, "no attempt adds a mark to it")
}

func TestTwoReplicas_TwoPods(t *testing.T) {
	c, p := start(t, 2)
	b := preFlight(t, c, "b", "two-1")
	take(t, c, "one-1")
	err := p.PreBind(t.Context(), b)
	assert.True(t, frameworktest.IsKind(err, framework.KindWait), "both create the same license, and the bind decides again, got %v", err)
	assert.Equal(t, []string{"a: 1"}, licenses(c))
	b.Written = true
	verdict, err := c.PreFlight(t.Context(), b)
	require.NoError(t, err)
	assert.Equal(t, "the cache to show its license of matlab", verdict.Wait.For, "it does not take a second one")
}

func TestBind_NeverMorePodsThanSeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := strings.Split("abcdefgh", "")
		one, p := start(t, 3, pods...)
		replicas := []*frameworktest.Cluster{one, frameworktest.Around(t, one.Server, one.Changes, one.Handle, p)}
		allowed := make(chan string, len(pods))
		for i, name := range pods {
			go func() {
				if replicas[i%2].Post(t.Context(), newPod(name), node.Name).Err == nil {
					allowed <- name
				}
			}()
		}
		for left := len(pods); left > 0; left -= 3 {
			<-time.After(10 * time.Second)
			require.Len(t, allowed, min(left, 3))
			for len(allowed) > 0 {
				name := <-allowed
				put(one, name, corev1.PodRunning)
				put(one, name, corev1.PodSucceeded)
			}
			require.NoError(t, p.Tidy(t.Context()))
		}
	})
}

func TestPreFlight_RejectsAnInvalidProduct(t *testing.T) {
	c, _ := start(t, 1)
	for _, product := range []string{"", "a/b", "A", strings.Repeat("a", 41)} {
		pod := newPod("a")
		pod.Annotations["license.prebind.dev/product"] = product
		_, err := c.PreFlight(t.Context(), c.Context(pod, node))
		assert.True(t, frameworktest.IsKind(err, framework.KindInvalid), "%q: %v", product, err)
	}
}
