// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// again is the pause of a scheduler before it retries.
const again = 500 * time.Millisecond

// label is a label of the nodes that this test's pod may use. With it, the test controls the choice of kube-scheduler.
func (b *bench) label() string { return "e2e.prebind.dev/" + b.ns }

// steered limits a pod to the allowed nodes.
func (b *bench) steered() gen.PodOption { return gen.NodeSelector(b.label(), "yes") }

// ownNode creates a node for this test's pods only, and allows it. Pods need the toleration.
func (b *bench) ownNode(name string) (node string, toleration gen.PodOption) {
	b.t.Helper()
	node = name + "-" + b.ns
	require.NoError(b.t, cluster.CreateNodes(b.t.Context(), b.client, cluster.Node(node,
		cluster.WithLabels(map[string]string{b.label(): "yes"}),
		cluster.WithTaints(corev1.Taint{Key: b.label(), Effect: corev1.TaintEffectNoSchedule}))))
	b.t.Cleanup(func() {
		_ = b.client.CoreV1().Nodes().Delete(context.WithoutCancel(b.t.Context()), node, metav1.DeleteOptions{})
	})
	return node, gen.Tolerates(b.label())
}

// beginBind binds the pod "pod" to the node like bindByHand, but returns immediately. The channel receives the result of client-go.
func (b *bench) beginBind(node string) <-chan error {
	done := make(chan error, 1)
	go func() { done <- b.bindByHand(b.binding(node)) }()
	return done
}

// end returns the result of beginBind.
func (b *bench) end(done <-chan error) error {
	b.t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		require.FailNow(b.t, "the Binding has no response yet")
		return nil
	}
}

// untilSelected waits for the selected-node of the claim "data", and returns it.
func (b *bench) untilSelected() string {
	b.t.Helper()
	return untilRead(b, b.client.CoreV1().PersistentVolumeClaims(b.ns).Get, "data", "provisioned for a node", func(claim *corev1.PersistentVolumeClaim) bool {
		return claim.Annotations[volume.AnnSelectedNode] != ""
	}).Annotations[volume.AnnSelectedNode]
}

// untilEvent waits for an event of the pod that contains all of the words.
func (b *bench) untilEvent(words ...string) {
	b.t.Helper()
	require.EventuallyWithT(b.t, func(c *assert.CollectT) {
		assert.True(c, says(b.events(), words...), "no event says %q: %q", words, b.events())
	}, patience, 100*time.Millisecond)
}

// deletePod deletes the pod "pod" and waits for the end of the deletion.
func (b *bench) deletePod() {
	b.t.Helper()
	require.NoError(b.t, b.client.CoreV1().Pods(b.ns).Delete(b.t.Context(), "pod", metav1.DeleteOptions{}))
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

// listeningClient returns a client, and the warnings that the API server sends to it, one in each line.
func (b *bench) listeningClient() (kubernetes.Interface, *bytes.Buffer) {
	b.t.Helper()
	warnings := &bytes.Buffer{}
	config := b.cluster.Config()
	config.WarningHandler = rest.NewWarningWriter(warnings, rest.WarningWriterOptions{})
	client, err := kubernetes.NewForConfig(config)
	require.NoError(b.t, err)
	return client, warnings
}
