// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
)

var update = flag.Bool("update", false, "update the golden responses")

// engineFunc implements Engine.
type engineFunc func(ctx context.Context, r binder.Request) binder.Decision

func (f engineFunc) Bind(ctx context.Context, r binder.Request) binder.Decision { return f(ctx, r) }

func ready() error { return nil }

func handlerOf(t testing.TB, engine engineFunc) *Handler {
	t.Helper()
	return &Handler{Engine: engine, Ready: ready, Log: logr.Discard(), Clock: clock.RealClock{}}
}

// serve posts the body as the API server does.
func serve(t testing.TB, h http.Handler, body []byte, change ...func(r *http.Request)) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, Path+"?timeout=10s", bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	for _, c := range change {
		c(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func read(t testing.TB, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	return content
}

// TestGolden compares the answer to each testdata/NAME.request.json with NAME.response.json. In the responses the patch is
// decoded from base64. test/golden has the answers to other decisions.
func TestGolden(t *testing.T) {
	pod := types.NamespacedName{Namespace: "shop", Name: "web"}
	topology := map[string]string{"topology.prebind.dev/zone": "z1", "topology.prebind.dev/rack": "r7"}
	cases := map[string]struct {
		reason   string
		decision binder.Decision
		// passes is set if the engine is not called.
		passes bool
	}{
		"allowed":                  {reason: "annotations are added to existing ones", decision: binder.Decision{Annotations: topology}},
		"allowed-nothing-to-add":   {reason: "without additions there is no patch", decision: binder.Decision{Annotations: map[string]string{}}},
		"allowed-no-annotations":   {reason: "the patch creates the map", decision: binder.Decision{Annotations: topology}},
		"allowed-null-annotations": {reason: "the patch replaces null with a map", decision: binder.Decision{Annotations: topology}},
		"allowed-escaped-keys": {reason: "JSON pointers escape / and ~", decision: binder.Decision{
			Annotations: map[string]string{"example.com/a~b": "new", "topology.prebind.dev/zone": "new", "example.com/c~1d": "new"},
		}},
		"allowed-equal-value": {reason: "an equal value is not patched", decision: binder.Decision{Annotations: topology}},
		"allowed-uid-pinned":  {reason: "the patch adds the UID to a Binding without one", decision: binder.Decision{Annotations: topology, UID: "0a1b2c3d"}},
		"allowed-uid-pinned-only": {
			reason: "the UID is added without annotations", decision: binder.Decision{UID: "0a1b2c3d"},
		},
		"allowed-more-labels": {
			reason: "labels are added to existing ones", decision: binder.Decision{Labels: topology},
		},
		"legacy-bindings": {reason: "only the object has the name of the pod", decision: binder.Decision{Annotations: topology, UID: "0a1b2c3d"}},
		"dry-run":         {reason: "a dry run returns warnings", decision: binder.Decision{Warnings: []string{"dry run: volumebinding would write", "dry run: and wait"}}},
		"unknown-kind": {reason: "an unknown kind of error is an internal error", decision: binder.Decision{
			Err: &framework.Error{Kind: "new", Plugin: "volumebinding", Message: "boom"},
		}},
		"invalid-object":    {reason: "an invalid Binding is denied", passes: true},
		"invalid-no-object": {reason: "a missing Binding is denied", passes: true},
		"other-resource":    {reason: "a mistake in the rules must not block other resources", passes: true},
		"other-version":     {reason: "a mistake in the rules must not block other versions", passes: true},
		"other-operation":   {reason: "only CREATE is a bind", passes: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			asked := 0
			h := handlerOf(t, func(_ context.Context, r binder.Request) binder.Decision {
				asked++
				assert.Equal(t, types.NamespacedName{Namespace: r.Binding.Namespace, Name: r.Binding.Name}, pod)
				assert.Equal(t, pod, r.Pod)
				assert.Equal(t, "node-a", r.Binding.Target.Name)
				assert.Equal(t, "system:kube-scheduler", r.User.Username)
				assert.Equal(t, name == "dry-run", r.DryRun)
				return tc.decision
			})
			w := serve(t, h, read(t, name+".request.json"))

			assert.Equal(t, !tc.passes, asked == 1, "number of calls of the engine")
			assert.Equal(t, http.StatusOK, w.Code, "the answer is an AdmissionReview")
			assert.Equal(t, "application/json", w.Header().Get("Content-Type"))
			got := readable(t, w.Body.Bytes())
			golden := name + ".response.json"
			if *update {
				require.NoError(t, os.WriteFile(filepath.Join("testdata", golden), got, 0o600))
			}
			assert.Equal(t, string(read(t, golden)), string(got), tc.reason)
		})
	}
	requests, err := filepath.Glob(filepath.Join("testdata", "*.request.json"))
	require.NoError(t, err)
	for _, path := range requests {
		name := strings.TrimSuffix(filepath.Base(path), ".request.json")
		assert.Contains(t, cases, name, "every request has a test case")
	}
}

// readable indents a review and decodes the patch.
func readable(t testing.TB, body []byte) []byte {
	t.Helper()
	var review map[string]any
	require.NoError(t, json.Unmarshal(body, &review))
	response, ok := review["response"].(map[string]any)
	if ok && response["allowed"] == true {
		// The API server ignores this status.
		assert.Equal(t, map[string]any{"code": 200.0, "metadata": map[string]any{}}, response["status"])
		delete(response, "status")
	}
	if ok && response["patch"] != nil {
		var patch []byte
		encoded, err := json.Marshal(response["patch"])
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(encoded, &patch))
		var operations []any
		require.NoError(t, json.Unmarshal(patch, &operations))
		response["patch"] = operations
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	require.NoError(t, encoder.Encode(review))
	return out.Bytes()
}

// TestHandler_NotReady checks that a replica that is not ready answers 503 before it reads the body, so that the API server repeats
// the call over a new connection.
func TestHandler_NotReady(t *testing.T) {
	h := handlerOf(t, func(context.Context, binder.Request) binder.Decision { panic("called while not ready") })
	h.Ready = func() error { return errors.New("this replica is shutting down") }
	w := serve(t, h, []byte("{"))
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	assert.Equal(t, "1", w.Header().Get("Retry-After"))
	assert.Equal(t, "close", w.Header().Get("Connection"))
	checkStatus(t, w, http.StatusServiceUnavailable, "this replica is shutting down")
}

// TestHeldCall_ReleasesReview checks that a held call keeps the Binding, but not the bytes of the review.
func TestHeldCall_ReleasesReview(t *testing.T) {
	const calls = 8
	padding := strings.Repeat("x", maxBody-16<<10)
	review := bytes.Replace(read(t, "allowed.request.json"), []byte(`"object": {`), []byte(`"object": {"unknown": "`+padding+`", `), 1)
	var compact bytes.Buffer
	require.NoError(t, json.Compact(&compact, review))
	for name, body := range map[string][]byte{"Indented": review, "Compact": compact.Bytes()} {
		t.Run(name, func(t *testing.T) {
			require.Greater(t, len(body), len(padding))
			var held, answered sync.WaitGroup
			held.Add(calls)
			release := make(chan struct{})
			h := handlerOf(t, func(_ context.Context, r binder.Request) binder.Decision {
				assert.Equal(t, "node-a", r.Binding.Target.Name)
				held.Done()
				<-release
				return binder.Decision{}
			})
			before := liveHeap()
			for range calls {
				answered.Go(func() { assert.Equal(t, http.StatusOK, serve(t, h, body).Code) })
			}
			held.Wait()
			assert.Less(t, liveHeap()-before, int64(2*maxBody), "%d calls are held", calls)
			close(release)
			answered.Wait()
		})
	}
}

// TestParse_Memory checks that anybody's review needs a bounded multiple of the memory of its body.
func TestParse_Memory(t *testing.T) {
	fill := func(item string) string {
		return strings.TrimSuffix(strings.Repeat(item+",", (maxBody-1<<10)/(len(item)+1)), ",")
	}
	keys := func() string {
		var b strings.Builder
		for i := 0; b.Len() < maxBody-1<<10; i++ {
			b.WriteString(`"` + strconv.FormatInt(int64(i), 36) + `":"",`)
		}
		return strings.TrimSuffix(b.String(), ",")
	}()
	const object = `"uid":"1","object":`
	for name, request := range map[string]string{
		"ManagedFields": object + `{"metadata":{"managedFields":[` + fill("{}") + `]}}`,
		"Annotations":   object + `{"metadata":{"annotations":{` + keys + `}}}`,
		"Groups":        object + `{},"userInfo":{"groups":[` + fill(`""`) + `]}`,
		"Extra":         object + `{},"userInfo":{"extra":{` + strings.ReplaceAll(keys, `""`, `[]`) + `}}`,
		"Options":       object + `{},"options":{"a":[` + fill("{}") + `]}`,
		"Response":      object + `{}},"response":{"result":{"details":{"causes":[` + fill("{}") + `]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			body := []byte(reviewPrefix + request + "}}")
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, Path, bytes.NewReader(body))
			runtime.ReadMemStats(&before)
			review, problem := readReview(r)
			require.Nil(t, problem)
			_, err := parse(review)
			require.Nil(t, err)
			runtime.ReadMemStats(&after)
			// The list of groups is allocated about twenty times while it grows: two of its arrays live at the same time.
			assert.Less(t, float64(after.TotalAlloc-before.TotalAlloc)/float64(len(body)), 32.0)
		})
	}
}

// liveHeap returns the bytes of the objects that are in use.
func liveHeap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// logged returns the log lines of a handler for one Binding.
func logged(t *testing.T, verbosity int, d binder.Decision) []map[string]any {
	t.Helper()
	var lines []map[string]any
	log := logr.New(funcr.NewJSON(func(line string) {
		fields := map[string]any{}
		assert.NoError(t, json.Unmarshal([]byte(line), &fields))
		lines = append(lines, fields)
	}, funcr.Options{Verbosity: verbosity}).GetSink())
	h := handlerOf(t, func(context.Context, binder.Request) binder.Decision {
		pass(3 * time.Second)
		return d
	})
	h.Log = log
	serve(t, h, read(t, "allowed.request.json"))
	return lines
}

// TestHandler_DecisionLog checks that the handler logs each decision as one line with stable keys.
func TestHandler_DecisionLog(t *testing.T) {
	refused := framework.Refuse(framework.Object{Kind: "Node", Name: "node-a"}, "no")
	refused.Plugin = "node-state"
	failed := framework.Internal(framework.Object{}, errors.New("boom"))
	failed.Plugin = "device"
	always := map[string]any{"user": "system:kube-scheduler", "node": "node-a", "pod": map[string]any{"name": "web", "namespace": "shop"}}
	cases := map[string]struct {
		reason   string
		decision binder.Decision
		// at is the minimum verbosity of the line.
		at   int
		want map[string]any
	}{
		"Allowed": {reason: "the bind did not wait", at: 2, want: map[string]any{"decision": "allowed", "took": "3s"}},
		"AfterAWait": {
			reason: "the line contains the attempt of the bind", at: 2,
			decision: binder.Decision{Attempt: "a-1", Calls: 3, Waited: 90 * time.Second},
			want:     map[string]any{"decision": "allowed", "took": "3s", "attempt": "a-1", "calls": 3.0, "waited": "1m30s"},
		},
		"Refused": {
			reason: "the line contains the plugin and the reason", at: 2, decision: binder.Decision{Err: refused},
			want: map[string]any{"decision": "refused", "took": "3s", "plugin": "node-state", "reason": "node-state: Node node-a: no"},
		},
		"Failed": {
			reason: "an internal error is logged at every verbosity", decision: binder.Decision{Err: failed, Attempt: "a-1", Calls: 1},
			want: map[string]any{"plugin": "device", "attempt": "a-1", "error": "device: boom"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if tc.at > 0 {
					assert.Empty(t, logged(t, tc.at-1, tc.decision), "binds are not logged by default")
				}
				lines := logged(t, tc.at, tc.decision)
				require.Len(t, lines, 1, "%s: one line per decision", tc.reason)
				for _, own := range []string{"logger", "level", "msg"} {
					delete(lines[0], own)
				}
				maps.Copy(tc.want, always)
				assert.Equal(t, tc.want, lines[0], tc.reason)
			})
		})
	}
}
