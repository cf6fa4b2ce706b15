// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/internal/ledger"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

// A bind costs the grant, one read of the bound pod by the engine, and the confirmation. The first bind of a node also makes the record.
func TestBind_Requests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second, node := podNamed("first", gen.Annotation(gpu, "GPU-1")), podNamed("second", gen.Annotation(gpu, "GPU-2")), gen.Node("node-a")
		c := frameworktest.New(t, Registration(), nil, first, second, node)
		for _, pod := range []*corev1.Pod{first, second} {
			c.Forget()
			require.Nil(t, c.Post(t.Context(), pod, node.Name).Err)
			fakeapi.Change(c.Server, pod, "", func(p *corev1.Pod) { p.Spec.NodeName = node.Name })
			synctest.Wait()
		}
		assert.Len(t, c.Writes(), 2, "requests that write: %v", c.Writes())
		assert.Equal(t, 1, c.Reads(), "requests that read")
		for _, record := range fakeapi.All(c.Server, &corev1.ConfigMap{}) {
			assert.Equal(t, confirmedKey, unconfirmed(record), "the grants are confirmed: %v", record.Data)
		}
	})
}

// A tenant can have many pods that hold a little of a device. A rejection reads only as many as show that the device is held.
func TestConflict_ReadsFewHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		me, node := podNamed("me", gen.Annotation(gpu, "GPU-1")), gen.Node("node-a")
		objects := []client.Object{me, node}
		for i := range 50 {
			objects = append(objects, podNamed(fmt.Sprint("pod-", i), gen.Annotation(gpu, "GPU-1:0.01")))
		}
		c := frameworktest.New(t, Registration(), nil, objects...)
		for i := range 50 {
			pod := podNamed(fmt.Sprint("pod-", i))
			require.Nil(t, c.Post(t.Context(), pod, node.Name).Err)
			fakeapi.Change(c.Server, pod, "", func(p *corev1.Pod) { p.Spec.NodeName = node.Name })
		}
		synctest.Wait()
		c.Forget()
		require.NotNil(t, c.Post(t.Context(), me, node.Name).Err)
		assert.LessOrEqual(t, c.Reads(), 4)
	})
}

// A tenant can have many pods that hold a little of many devices. A bind reads each of them once, also if it decides again because the cache was
// behind.
func TestConflict_ReadsAHolderOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const holders = 20
		listed := func(n int, share string) gen.Meta {
			var ids []string
			for i := range n {
				ids = append(ids, fmt.Sprintf("%d:%s", i, share))
			}
			return gen.Annotation(gpu, strings.Join(ids, ","))
		}
		me, ended := podNamed("me"), phased(corev1.PodSucceeded)
		objects := []client.Object{me, ended}
		rec := newRecord("node-a")
		add := func(pod *corev1.Pod, annotation gen.Meta) {
			annotation(&pod.ObjectMeta)
			rec.bind(pod, grantOf(pod))
		}
		add(ended, listed(200, "0.9"))
		for i := range holders {
			pod := podNamed(fmt.Sprint("pod-", i), gen.BoundTo("node-a"))
			add(pod, listed(200, "0.000001"))
			objects = append(objects, pod)
		}
		data, err := rec.Encode()
		require.NoError(t, err)
		s := newServer(t, append(objects, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: recordName("node-a"), Labels: map[string]string{ledger.Label: component}}, Data: data,
		})...)
		cached, l := newLagging(s), s.api.Connect()
		cached.sync()
		changed := s.object()
		changed.Labels["changed"] = "" // The first write of the bind conflicts.
		require.NoError(t, s.Update(t.Context(), changed))
		reads := 0
		l.Before = func(c fakeapi.Call) error {
			if c.Verb == "get" && c.Kind == "Pod" {
				reads++
			}
			return nil
		}
		require.NoError(t, pluginOn(s, cached, l, s.hub).PreBind(t.Context(), bindOf(me, "a", listed(200, "0.5"))))
		assert.Equal(t, holders+1, reads)
	})
}

// Fifty pods are bound to one node at once. A request takes 2 ms, and the caches are 5 ms behind.
func TestBurst_RarelyConflicts(t *testing.T) {
	const binds = 50
	for replicas, most := range map[int]int{1: 0, 2: 2 * binds} {
		t.Run(fmt.Sprint(replicas), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node := gen.Node("node-a")
				objects := []client.Object{node}
				for i := range binds {
					objects = append(objects, podNamed(fmt.Sprint("pod-", i), gen.Annotation(gpu, fmt.Sprint("GPU-", i))))
				}
				s := newServer(t, objects...)
				var asked atomic.Int32
				var clusters []*frameworktest.Cluster
				for range replicas {
					l, cached := s.api.Connect(), newLagging(s)
					cached.follow(5*time.Millisecond, objects...)
					l.Step = func(_ context.Context, call fakeapi.Call, do func() error) error {
						pass(2 * time.Millisecond)
						if call.Verb == "create" || call.Verb == "update" {
							asked.Add(1)
						}
						return do()
					}
					p := pluginOn(s, cached, l, cached.hub)
					clusters = append(clusters, frameworktest.Around(t, s.api, cached.hub, p.h, p))
				}
				var all sync.WaitGroup
				for i := range binds {
					all.Go(func() {
						pod := podNamed(fmt.Sprint("pod-", i))
						assert.Nil(t, clusters[i%replicas].Post(t.Context(), pod, node.Name).Err)
						s.change(pod, func(p *corev1.Pod) { p.Spec.NodeName = node.Name })
					})
				}
				all.Wait()
				pass(time.Minute)
				assert.Equal(t, binds, s.record().boundPods().Len())
				assert.LessOrEqual(t, int(asked.Load())-s.count(), most, "conflicts in %d binds", binds)
				assert.Equal(t, 2*binds, s.count(), "writes")
			})
		})
	}
}
