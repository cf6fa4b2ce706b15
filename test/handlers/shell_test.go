// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/policy/v1alpha1"
)

// TestShell checks that the handler in shell does the step of a task that exists at its start, and of a later one, undoes both, and reports a
// step that cannot be done.
func TestShell(t *testing.T) {
	t.Parallel()
	create(t, "shell-before", "shell", nil)
	start(t, "shell", "sh", func(string) []string { return []string{filepath.Join(examples, "shell", "handler.sh")} })
	until(t, "shell-before", is(v1alpha1.TaskReady))
	create(t, "shell-after", "shell", nil)
	for _, name := range []string{"shell-before", "shell-after"} {
		assert.Equal(t, []string{"example.com/shell"}, until(t, name, is(v1alpha1.TaskReady)).Finalizers)
		config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		require.NoError(t, tasks.Get(t.Context(), client.ObjectKeyFromObject(config), config))
		remove(t, name)
		assert.Equal(t, nodeName, config.Data["node"])
		untilGone(t, config, name)
	}
	create(t, "shell-never", "shell", map[string]v1alpha1.ParameterValue{"level": "none"})
	until(t, "shell-never", is(v1alpha1.TaskFailed))
}
