// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// again is the pause of a scheduler before it retries.
const again = 500 * time.Millisecond

// label is one that only the nodes carry where this test's pod may go, so that
// the test says where a kube-scheduler sends it.
func (b *bench) label() string { return "e2e.prebind.dev/" + b.ns }

// steered limits a pod to the nodes that are allowed.
func (b *bench) steered() gen.PodOption { return gen.NodeSelector(b.label(), "yes") }

// allow lets the pod go to the node.
func (b *bench) allow(node string) { b.setLabel(node, `"yes"`) }

// forbid takes that back.
func (b *bench) forbid(node string) { b.setLabel(node, "null") }

func (b *bench) setLabel(node, value string) {
	b.t.Helper()
	_, err := b.client.CoreV1().Nodes().Patch(b.t.Context(), node, types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"`+b.label()+`":`+value+`}}}`), metav1.PatchOptions{})
	require.NoError(b.t, err)
}

// ownNode makes a node that no other test's pod goes to, and allows it. Pods need
// the toleration.
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

// beginBind has the pod "pod" bound to the node, as bindByHand does, and returns
// at once; the channel gets what client-go returns.
func (b *bench) beginBind(node string) <-chan error {
	done := make(chan error, 1)
	go func() { done <- b.bindByHand(b.binding(node)) }()
	return done
}

// end returns what came of beginBind.
func (b *bench) end(done <-chan error) error {
	b.t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		require.FailNow(b.t, "the Binding has no answer yet")
		return nil
	}
}

// insist posts the Binding until it succeeds, as a scheduler does that knows no
// other node. It returns the errors on the way; the last one is nil. It may be
// called from any goroutine.
func (b *bench) insist(ctx context.Context, binding *corev1.Binding) []error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(again)
	defer tick.Stop()
	var errs []error
	for {
		err := b.client.CoreV1().Pods(b.ns).Bind(ctx, binding, metav1.CreateOptions{})
		errs = append(errs, err)
		if err == nil {
			return errs
		}
		select {
		case <-ctx.Done():
			return errs
		case <-tick.C:
		}
	}
}

// untilSelected waits for the selected-node of the claim, and returns it.
func (b *bench) untilSelected(name string) string {
	b.t.Helper()
	var node string
	require.EventuallyWithT(b.t, func(c *assert.CollectT) {
		claim, err := b.client.CoreV1().PersistentVolumeClaims(b.ns).Get(b.t.Context(), name, metav1.GetOptions{})
		require.NoError(c, err)
		node = claim.Annotations[volume.AnnSelectedNode]
		assert.NotEmpty(c, node)
	}, patience, 50*time.Millisecond, "the claim %s should have a selected node", name)
	return node
}

// untilEvent waits for an event of the pod that says all of the words.
func (b *bench) untilEvent(words ...string) {
	b.t.Helper()
	require.EventuallyWithT(b.t, func(c *assert.CollectT) {
		assert.True(c, says(b.events(), words...), "no event says %q: %q", words, b.events())
	}, patience, 100*time.Millisecond)
}

// deletePod deletes the pod "pod" and returns when it is gone.
func (b *bench) deletePod() {
	b.t.Helper()
	require.NoError(b.t, b.client.CoreV1().Pods(b.ns).Delete(b.t.Context(), "pod", metav1.DeleteOptions{}))
}
