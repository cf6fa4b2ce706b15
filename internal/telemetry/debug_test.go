// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/configuration"
	"github.com/prebind/prebind/internal/work"
	"github.com/prebind/prebind/mutators"
)

func TestDebugHandler(t *testing.T) {
	registered := &configuration.Registry{
		Mutators: []mutators.Registration{{Name: "topology", On: true}, {Name: "node-info"}},
		Plugins:  []framework.Registration{{Name: "node-state", On: true}, {Name: "device", On: true}},
	}
	none := pflag.NewFlagSet("none", pflag.ContinueOnError)
	c, err := configuration.Parse(registered, "file", []byte(`apiVersion: config.prebind.dev/v1alpha1
kind: PrebindConfiguration
budgets: {hold: 3s}
prebindPlugins: ["*", -device]
mutators: [node-info]
`), none)
	require.NoError(t, err)
	attempts := []work.InFlight{{Namespace: "shop", Pod: "web", Node: "node-a", Attempt: "a-1", Phase: "preparing", Plugin: "volumebinding"}}
	h := Debug(func() []work.InFlight { return attempts }, c)
	get := func(path string, into any) string {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		require.Equal(t, http.StatusOK, w.Code, path)
		if into != nil {
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), into), path)
		}
		return w.Body.String()
	}

	var shown []work.InFlight
	get("/debug/attempts", &shown)
	assert.Equal(t, attempts[0].Attempt, shown[0].Attempt)
	attempts = nil
	assert.Equal(t, "[]\n", get("/debug/attempts", nil), "the list is empty, not null")

	config := get("/debug/config", nil)
	assert.Contains(t, config, "hold: 3s")
	assert.Contains(t, config, "hash: "+c.Hash)
	assert.Contains(t, config, "# mode Enforce, mutators node-info, PreBind plugins node-state\n")
	again, err := configuration.Parse(registered, "shown", []byte(config), none)
	require.NoError(t, err, "the output is a valid configuration file")
	assert.Equal(t, c.Hash, again.Hash, "the output is the configuration in force")

	assert.Contains(t, get("/debug/pprof/", nil), "goroutine")
	assert.NotEmpty(t, get("/debug/pprof/heap", nil))
	assert.NotEmpty(t, get("/debug/pprof/cmdline", nil))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/debug/config", nil))
	assert.Equal(t, http.StatusMethodNotAllowed, w.Code, "the endpoint does not change the configuration")
}

// TestDebugHandler_LogLevel checks that the level changes without a restart, and that an invalid level is rejected.
func TestDebugHandler_LogLevel(t *testing.T) {
	h := Debug(nil, nil)
	put := func(level string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPut, "/debug/flags/v", strings.NewReader(level)))
		return w
	}
	require.False(t, klog.V(4).Enabled())
	t.Cleanup(func() { put("0") })
	w := put("4\n")
	require.Equal(t, http.StatusOK, w.Code, "%s", w.Body)
	assert.True(t, klog.V(4).Enabled())
	assert.False(t, klog.V(5).Enabled())
	for _, invalid := range []string{"", "high", "-1", strings.Repeat("1", maxLevel+1)} {
		w := put(invalid)
		assert.Equal(t, http.StatusBadRequest, w.Code, invalid)
		assert.Contains(t, w.Body.String(), "must be a log level such as 4")
	}
	assert.True(t, klog.V(4).Enabled(), "an invalid level changes nothing")
}
