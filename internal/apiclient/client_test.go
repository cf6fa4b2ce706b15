// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package apiclient

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// kubeconfig returns a file for the API server with the address.
func kubeconfig(t *testing.T, address string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	content := `{"clusters": [{"name": "a", "cluster": {"server": "` + address + `"}}], "contexts": [{"name": "a", "context": {"cluster": "a"}}], "current-context": "a"}`
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	return file
}

// TestConnect checks that every request has a time limit.
func TestConnect(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }))
	t.Cleanup(server.Close)
	config, _, err := Connect(t.Context(), kubeconfig(t, server.URL), "agent", time.Second)
	require.NoError(t, err)
	assert.Equal(t, answerTakes, config.Timeout)
	assert.Equal(t, "10", os.Getenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS"), "a frozen API server must not cost the lease")
}

func TestConnect_NoAnswer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, _, err := Connect(ctx, kubeconfig(t, "http://127.0.0.1:1"), "agent", time.Second)
	require.ErrorContains(t, err, "the API server at http://127.0.0.1:1 does not answer")
	require.ErrorContains(t, err, "connection refused")
	require.ErrorIs(t, ctx.Err(), context.DeadlineExceeded, "it tries again")
}
