// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodelock

import (
	"encoding/json"
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

const nodeName = "node-a"

func newNode() *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}} }

func newPod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)}}
}

// marks returns the marks of the stored node.
func marks(t *testing.T, c *frameworktest.Cluster) []framework.Mark {
	t.Helper()
	node, ok := fakeapi.Get(c.Server, newNode())
	require.True(t, ok)
	return marksOn(node)
}

func preBinder(t *testing.T, c *frameworktest.Cluster) framework.PreBinder {
	t.Helper()
	p, ok := c.Plugin.(framework.PreBinder)
	require.True(t, ok)
	return p
}

func TestPostBind_ReleasesTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod("a")
		c := frameworktest.New(t, Registration(), nil, pod, newNode())
		require.Nil(t, c.Post(t.Context(), pod, nodeName).Err)
		assert.Len(t, marks(t, c), 1)
		pod.Spec.NodeName = nodeName
		c.Put(pod)
		synctest.Wait()
		assert.Empty(t, marks(t, c))
	})
}

func TestPreBindRollBack_ReleasesTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod("a")
		c := frameworktest.New(t, Registration(), nil, pod, newNode())
		require.Nil(t, c.Post(t.Context(), pod, nodeName).Err)
		<-time.After(framework.BindSettles - time.Second)
		assert.Len(t, marks(t, c), 1, "the API server can still bind the pod")
		<-time.After(time.Minute)
		assert.Empty(t, marks(t, c), "the pod was not bound")
	})
}

func TestMarks_AfterACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dead := framework.Mark{Pod: types.NamespacedName{Namespace: "shop", Name: "a"}, PodUID: "a", Node: nodeName, Attempt: "dead-1"}
		value, err := json.Marshal([]framework.Mark{dead})
		require.NoError(t, err)
		node := newNode()
		node.Annotations = map[string]string{Annotation: string(value)}
		c := frameworktest.New(t, Registration(), nil, newPod("a"), newPod("b"), node)
		p := preBinder(t, c)
		listed, err := p.Marks(t.Context())
		require.NoError(t, err)
		require.Equal(t, []framework.Mark{dead}, listed)
		time.AfterFunc(time.Minute, func() {
			for range 2 { // It is idempotent.
				assert.NoError(t, p.PreBindRollBack(t.Context(), dead))
			}
		})
		began := time.Now()
		require.Nil(t, c.Post(t.Context(), newPod("b"), nodeName).Err)
		assert.GreaterOrEqual(t, time.Since(began), time.Minute, "until then, pod a has the lock")
	})
}

// rejecting is a replica whose other plugin rejects the bind after the lock was taken.
type rejecting struct{ framework.PreBinder }

func (r rejecting) PreFlight(bc *framework.BindContext) (framework.Verdict, error) {
	if bc.Written {
		return framework.Verdict{}, framework.Refuse(framework.Object{}, "another plugin rejects")
	}
	return r.PreBinder.PreFlight(bc)
}

func TestTwoReplicas_ARollBackKeepsTheMarkOfTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := frameworktest.New(t, Registration(), nil, newPod("a"), newPod("b"), newNode())
		b := frameworktest.Around(t, a.Server, a.Changes, a.Handle, rejecting{preBinder(t, a)})
		require.Nil(t, a.Post(t.Context(), newPod("a"), nodeName).Err)
		allowed, began := marks(t, a), time.Now()
		require.NotNil(t, b.Post(t.Context(), newPod("a"), nodeName).Err, "the scheduler repeats the Binding, and another replica gets it")
		synctest.Wait()
		assert.Equal(t, allowed, marks(t, a), "only the mark of the rejected attempt is removed")
		require.Nil(t, a.Post(t.Context(), newPod("b"), nodeName).Err)
		assert.GreaterOrEqual(t, time.Since(began), framework.BindSettles, "until then, the API server can bind pod a")
	})
}
