// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/gen"
)

func TestReadiness(t *testing.T) {
	pods, nodes, asked := false, false, 0
	r := &readiness{}
	r.waitFor("Node", func() bool { asked++; return nodes })
	r.waitFor("Pod", func() bool { asked++; return pods })

	require.ErrorContains(t, r.check(), "Node, Pod", "it says what is missing")
	nodes = true
	err := r.check()
	require.ErrorContains(t, err, "Pod")
	assert.NotContains(t, err.Error(), "Node")
	pods = true
	require.NoError(t, r.check())
	before := asked
	require.NoError(t, r.check())
	assert.Equal(t, before, asked, "a cache that is synced stays so")

	r.drain()
	require.ErrorContains(t, r.check(), "shutting down")
	r.drain()
	require.Error(t, r.check(), "for good")
}

func TestReadinessWithoutCaches(t *testing.T) {
	r := &readiness{}
	require.NoError(t, r.check())
	fresh := &readiness{}
	fresh.waitFor("Pod", func() bool { return false })
	fresh.drain()
	assert.ErrorContains(t, fresh.check(), "shutting down", "draining outweighs starting")
}

func TestReadinessWaitsUntil(t *testing.T) {
	r := &readiness{}
	problem := errors.New("no certificate yet")
	r.waitUntil(func() error { return problem })
	require.ErrorIs(t, r.check(), problem)
	problem = nil
	require.NoError(t, r.check())
	problem = errors.New("later")
	assert.NoError(t, r.check(), "once is enough")
}

func TestProbes(t *testing.T) {
	r := &readiness{}
	synced := false
	r.waitFor("Pod", func() bool { return synced })
	handler := probeServer(r.check).Handler
	get := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		return w
	}
	assert.Equal(t, http.StatusOK, get("/healthz").Code, "a process that answers lives")
	w := get("/readyz")
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	assert.Contains(t, w.Body.String(), "Pod", "it says why")
	synced = true
	assert.Equal(t, http.StatusOK, get("/readyz").Code)
	r.drain()
	assert.Equal(t, http.StatusServiceUnavailable, get("/readyz").Code)
	assert.Equal(t, http.StatusOK, get("/healthz").Code)
	assert.Equal(t, http.StatusNotFound, get("/metrics").Code)
}

func TestTrimNode(t *testing.T) {
	node := gen.Node("node-a", gen.Zone("z1"), gen.Ready(10))
	node.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
	node.Status.Images = []corev1.ContainerImage{{Names: []string{"large"}}}
	got, err := trimNode(node)
	require.NoError(t, err)
	assert.Equal(t, gen.Node("node-a", gen.Zone("z1"), gen.Ready(10)), got)
	got, err = trimNode("something else")
	require.NoError(t, err)
	assert.Equal(t, "something else", got)
}
