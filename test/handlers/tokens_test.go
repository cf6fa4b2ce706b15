// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/policy/v1alpha1"
)

const tokens = "example.com/tokens"

func wantToken(t *testing.T, name, pool string) {
	t.Helper()
	create(t, name, "tokens", map[string]v1alpha1.ParameterValue{"pool": v1alpha1.ParameterValue(pool)})
}

// holders returns the number of tokens of the pool that are taken.
func holders(t *testing.T, pool string) int {
	t.Helper()
	var config corev1.ConfigMap
	require.NoError(t, tasks.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "tokens-" + pool}, &config))
	return len(config.Data)
}

func TestTokens(t *testing.T) {
	t.Parallel()
	const limit, all = 3, 30
	process := startProgram(t, "tokens", fmt.Sprintf("--limit=%d", limit))
	changes, err := tasks.Watch(t.Context(), &v1alpha1.BindTaskList{}, client.MatchingFields{"spec.handler": tokens})
	require.NoError(t, err)
	defer changes.Stop()
	for _, pool := range []string{"licenses", "other"} {
		require.NoError(t, tasks.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "tokens-" + pool}}))
	}
	for i := range all {
		wantToken(t, fmt.Sprintf("license-%d", i), "licenses")
	}
	wantToken(t, "other-pool", "other")
	wantToken(t, "invalid", "missing")
	until(t, "other-pool", is(v1alpha1.TaskReady))
	assert.Equal(t, "InvalidPool", until(t, "invalid", is(v1alpha1.TaskFailed)).Condition(v1alpha1.TaskFailed).Reason)
	remove(t, "other-pool")
	remove(t, "invalid")

	// Each pod ends when it has its token.
	served, gone := map[string]bool{}, 0
	holding := map[string]bool{}
	killed := false
	deadline := time.After(patience)
	for gone < all {
		var event watch.Event
		select {
		case event = <-changes.ResultChan():
		case <-deadline:
			t.Fatalf("%d of %d pods had a token, and %d ended", len(served), all, gone)
		}
		task, ok := event.Object.(*v1alpha1.BindTask)
		require.True(t, ok, "%v", event)
		if task.Spec.Parameters["pool"] != "licenses" {
			continue
		}
		if event.Type == watch.Deleted {
			assert.True(t, served[task.Name], "%s is gone before it had a token", task.Name)
			gone++
			continue
		}
		if !task.IsTrue(v1alpha1.TaskReady) || task.DeletionTimestamp != nil {
			delete(holding, task.Name)
			continue
		}
		holding[task.Name] = true
		assert.LessOrEqual(t, len(holding), limit)
		if served[task.Name] {
			continue
		}
		served[task.Name] = true
		if len(served) > all/2 && !killed {
			killed = true
			require.NoError(t, process.Kill())
			require.NoError(t, process.Start())
		}
		require.NoError(t, tasks.Delete(t.Context(), task))
	}
	assert.Equal(t, 0, holders(t, "licenses"))
	assert.True(t, killed)
}
