// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/binder"
)

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

// liveHeap returns the bytes of the objects that are in use.
func liveHeap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestSplit(t *testing.T) {
	small := reviewPrefix + `"uid":"1","object":{"a":1},"options":{}}}`
	cases := map[string]struct {
		reason, body, review, object string
	}{
		"Small":     {reason: "a small review is not scanned twice", body: small, review: small},
		"Formatted": {reason: "only the API server's own format is recognized", body: " " + small, review: reviewPrefix + `"uid":"1"}}`, object: `{"a":1}`},
		"Null":      {reason: "null is not an object", body: " " + reviewPrefix + `"uid":"1","object":null}}`, review: reviewPrefix + `"uid":"1"}}`},
		"None":      {reason: "the review has no object", body: " " + reviewPrefix + `"uid":"1"}}`, review: reviewPrefix + `"uid":"1"}}`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			review, object, bad := split([]byte(tc.body))
			require.Nil(t, bad)
			assert.Equal(t, tc.review, string(review), tc.reason)
			assert.Equal(t, tc.object, string(object), tc.reason)
		})
	}
}
