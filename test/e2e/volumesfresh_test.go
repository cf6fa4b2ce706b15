// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/test/gen"
)

// Prebind can use a volume as soon as the API server has stored it, before the watch of a replica delivers it. The test creates each volume
// right before the only bind that can use it.
func TestStaticBindsRightAfterTheirVolumes(t *testing.T) {
	t.Parallel()
	const binds, label = 20, "e2e.prebind.dev/for"
	b := newBench(t, shared, nil)
	b.unlimited()
	class := b.class(volume.NotSupportedProvisioner)
	for i := range binds {
		name := fmt.Sprintf("pod-%d", i)
		claim := gen.Claim(name, gen.InNamespace(b.ns), gen.OfClass(class), gen.Selects(label, name))
		_, err := b.client.CoreV1().PersistentVolumeClaims(b.ns).Create(t.Context(), claim, metav1.CreateOptions{})
		require.NoError(t, err)
		_, err = b.createPod(name, byHand, gen.UsesClaim(name))
		require.NoError(t, err)
	}
	results := make(chan error, binds)
	for i := range binds {
		go func() {
			name := fmt.Sprintf("pod-%d", i)
			err := b.createVolume(gen.VolumeOfClass(class), gen.OnNode("node-1"), gen.Label(label, name))
			if err == nil {
				err = b.bindByHand(gen.Binding(gen.Pod(name, gen.InNamespace(b.ns)), "node-1"))
			}
			results <- err
		}()
	}
	var failed []error
	for range binds {
		if err := <-results; err != nil {
			failed = append(failed, err)
		}
	}
	assert.NoError(t, errors.Join(failed...), "%d of %d binds", len(failed), binds)
}

// unlimited gives the bench a client without a client-side rate limit.
func (b *bench) unlimited() {
	b.t.Helper()
	config := b.cluster.Config()
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	require.NoError(b.t, err)
	own := *b.world
	own.client = client
	b.world = &own
}

// createVolume returns as soon as the API server has stored the volume. It is safe for concurrent use.
func (b *bench) createVolume(options ...gen.VolumeOption) error {
	pv := gen.Volume("", options...)
	pv.GenerateName = "e2e-"
	_, err := b.client.CoreV1().PersistentVolumes().Create(b.t.Context(), pv, metav1.CreateOptions{})
	return err
}
