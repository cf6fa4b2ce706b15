// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReadiness_WaitFor(t *testing.T) {
	pods, nodes, checks := false, false, 0
	r := &Readiness{}
	r.WaitFor("Node", func() bool { checks++; return nodes })
	r.WaitFor("Pod", func() bool { checks++; return pods })

	require.ErrorContains(t, r.Check(), "Node", "the error names a missing kind")
	nodes = true
	err := r.Check()
	require.ErrorContains(t, err, "Pod")
	assert.NotContains(t, err.Error(), "Node")
	pods = true
	require.NoError(t, r.Check())
	before := checks
	require.NoError(t, r.Check())
	assert.Equal(t, before, checks, "a synced cache stays synced")

	r.Drain()
	require.ErrorContains(t, r.Check(), "shutting down")
	r.Drain()
	require.Error(t, r.Check(), "a replica that shuts down stays unready")
}

func TestReadiness_RequireOnce(t *testing.T) {
	r := &Readiness{}
	problem := errors.New("no certificate yet")
	r.RequireOnce(func() error { return problem })
	require.ErrorIs(t, r.Check(), problem)
	problem = nil
	require.NoError(t, r.Check())
	problem = errors.New("later")
	assert.NoError(t, r.Check(), "an error after the first success is ignored")
}

func TestProbes(t *testing.T) {
	r := &Readiness{}
	synced := false
	r.WaitFor("Pod", func() bool { return synced })
	handler := r.Probes()
	get := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		return w
	}
	assert.Equal(t, http.StatusOK, get("/healthz").Code, "the process is alive")
	w := get("/readyz")
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	assert.Contains(t, w.Body.String(), "Pod", "the probe returns the reason")
	synced = true
	assert.Equal(t, http.StatusOK, get("/readyz").Code)
	r.Drain()
	assert.Equal(t, http.StatusServiceUnavailable, get("/readyz").Code)
	assert.Equal(t, http.StatusOK, get("/healthz").Code)
	assert.Equal(t, http.StatusNotFound, get("/metrics").Code)
}

// TestReadiness_Require checks that a failing requirement fails the probe, and that the replica
// still decides on Bindings.
func TestReadiness_Require(t *testing.T) {
	r := &Readiness{}
	var problem error
	r.Require(func() error { return problem })
	require.NoError(t, r.Probe())
	problem = errors.New("no lease")
	require.ErrorIs(t, r.Probe(), problem)
	require.NoError(t, r.Check())
	problem = nil
	assert.NoError(t, r.Probe())
}
