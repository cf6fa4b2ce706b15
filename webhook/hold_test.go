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
