// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"slices"
	"sync"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// untilAvailable waits until the volumes are available.
func (b *bench) untilAvailable(volumes []string) {
	b.t.Helper()
	require.EventuallyWithT(b.t, func(c *assert.CollectT) {
		for _, name := range volumes {
			pv, err := b.client.CoreV1().PersistentVolumes().Get(b.t.Context(), name, metav1.GetOptions{})
			require.NoError(c, err)
			assert.Equal(c, corev1.VolumeAvailable, pv.Status.Phase)
		}
	}, patience, 100*time.Millisecond, "the volumes should be available")
}

// versions returns the resource versions of the pod, a volume and claims, which change with every write.
func (b *bench) versions(pv string, claims ...string) map[string]string {
	b.t.Helper()
	v, err := b.client.CoreV1().PersistentVolumes().Get(b.t.Context(), pv, metav1.GetOptions{})
	require.NoError(b.t, err)
	out := map[string]string{"pod": b.getPod().ResourceVersion, "volume": v.ResourceVersion}
	for _, name := range claims {
		out[name] = b.getClaim(name).ResourceVersion
	}
	return out
}

// heard collects the warnings that the API server sends to a client.
type heard struct {
	mu       sync.Mutex
	warnings []string
}

// HandleWarningHeader implements rest.WarningHandler.
func (h *heard) HandleWarningHeader(_ int, _, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.warnings = append(h.warnings, text)
}

func (h *heard) all() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.warnings)
}

// listeningClient returns a client that collects warnings.
func (b *bench) listeningClient() (kubernetes.Interface, *heard) {
	b.t.Helper()
	h := &heard{}
	config := b.cluster.Config()
	config.WarningHandler = h
	client, err := kubernetes.NewForConfig(config)
	require.NoError(b.t, err)
	return client, h
}
