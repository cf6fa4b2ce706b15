// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/policy/v1alpha1"
)

// TestPython checks that the handler in Python does the step of a task that exists at its start, and of a later one, undoes both, and reports a
// step that cannot be done.
func TestPython(t *testing.T) {
	t.Parallel()
	create(t, "python-before", "python", nil)
	start(t, "python", "python3", func(kubeconfig string) (args, env []string) {
		account := t.TempDir()
		config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		require.NoError(t, err)
		require.NoError(t, rest.LoadTLSFiles(config))
		require.NoError(t, os.WriteFile(filepath.Join(account, "token"), []byte(config.BearerToken), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(account, "ca.crt"), config.CAData, 0o600))
		return []string{filepath.Join(examples, "python", "handler.py")}, []string{"API_SERVER=" + config.Host, "SERVICE_ACCOUNT=" + account}
	})
	until(t, "python-before", is(v1alpha1.TaskReady))
	create(t, "python-after", "python", nil)
	for _, name := range []string{"python-before", "python-after"} {
		assert.Equal(t, []string{"example.com/python"}, until(t, name, is(v1alpha1.TaskReady)).Finalizers)
		config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		require.NoError(t, tasks.Get(t.Context(), client.ObjectKeyFromObject(config), config))
		remove(t, name)
		assert.Equal(t, nodeName, config.Data["node"])
		untilGone(t, config, name)
	}
	create(t, "python-never", "python", map[string]v1alpha1.ParameterValue{"level": "none"})
	until(t, "python-never", is(v1alpha1.TaskFailed))
}
