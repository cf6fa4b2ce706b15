// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
)

// gpu names devices of the resource "gpu".
func gpu(devices string) gen.Meta { return gen.Annotation("device.prebind.dev/gpu", devices) }

// garage is a node with devices for the pods of one test only.
type garage struct {
	*bench
	node       string
	toleration gen.PodOption
}

func newGarage(t *testing.T, w *world) *garage {
	t.Helper()
	g := &garage{bench: newBench(t, w, nil)}
	g.node, g.toleration = g.ownNode("gpus")
	return g
}

// parker is a pod for the garage, in a separate namespace.
type parker struct {
	*bench
	garage *garage
	uid    types.UID
}

// parker creates a pod that the test binds.
func (g *garage) parker(options ...gen.PodOption) *parker {
	g.t.Helper()
	p := &parker{bench: newBench(g.t, g.world, nil), garage: g}
	p.uid = p.podWith(byHand, append(options, g.toleration, g.steered())...).UID
	return p
}

// park posts the pod's Binding to the garage.
func (p *parker) park() error {
	return p.bindByHand(p.binding(p.garage.node))
}

// holds returns the message about a device that the pod holds.
func (p *parker) holds(device string) string {
	return fmt.Sprintf("device %s (gpu) is held by pod %s/pod", device, p.ns)
}

// record returns the data of the node's record, or nil if it does not exist.
func (b *bench) record(node string) map[string]string {
	b.t.Helper()
	record, err := b.client.CoreV1().ConfigMaps(install.Namespace).Get(b.t.Context(), "prebind-devices-"+node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(b.t, err)
	return record.Data
}

// untilRecord reads the node's record until the condition holds for its data. The data is nil while the record does not exist.
func (b *bench) untilRecord(node, what string, condition func(data map[string]string) bool) {
	b.t.Helper()
	err := wait.PollUntilContextTimeout(b.t.Context(), reads, 2*patience, true, func(context.Context) (bool, error) {
		return condition(b.record(node)), nil
	})
	require.NoError(b.t, err, "waiting for the record of node %s to be %s: %v", node, what, b.record(node))
}

// granted is the entry of one pod in a record.
type granted struct {
	Pod    string `json:"pod"`
	Bound  bool   `json:"bound"`
	Grants []struct {
		Attempt string                       `json:"attempt"`
		Devices map[string]map[string]string `json:"devices"`
	} `json:"grants"`
}

// grantedTo returns the pod's entry, or nil if it does not exist. It is safe for concurrent use.
func grantedTo(data map[string]string, uid types.UID) *granted {
	text, ok := data[string(uid)]
	if !ok {
		return nil
	}
	out := &granted{}
	if err := json.Unmarshal([]byte(text), out); err != nil {
		return nil
	}
	return out
}

// untilSettled waits until the pod's grants are confirmed, and checks the devices, and that record and pod name the same attempt.
func (p *parker) untilSettled(devices map[string]string) {
	p.t.Helper()
	pod := p.untilBound()
	var entry *granted
	p.untilRecord(p.garage.node, "the bound pod's", func(data map[string]string) bool {
		entry = grantedTo(data, p.uid)
		return entry != nil && entry.Bound && data["node-lock"] == ""
	})
	assert.Equal(p.t, p.ns+"/pod", entry.Pod)
	if assert.Len(p.t, entry.Grants, 1, "one attempt should bind the pod") {
		assert.Equal(p.t, map[string]map[string]string{"gpu": devices}, entry.Grants[0].Devices)
		assert.Equal(p.t, pod.Annotations[attemptKey], entry.Grants[0].Attempt)
	}
}

// If a bind fails after Prebind has allowed it, Prebind releases its devices when the bind can no longer succeed.
func TestDeviceIsRolledBack(t *testing.T) {
	t.Parallel()
	g := newGarage(t, shared)
	first, second := g.parker(gpu("GPU-1")), g.parker(gpu("GPU-1"))
	first.refusedAfterUs(g.node)
	second.assertRefused(second.park(), first.holds("GPU-1")+" (bind in progress)")
	first.untilRecord(g.node, "without the first pod", func(data map[string]string) bool { return grantedTo(data, first.uid) == nil })
	first.untilEvent("PreBindRolledBack", "device: Node "+g.node+": this attempt did not bind the pod")
	require.NoError(t, second.park())
	second.untilSettled(map[string]string{"GPU-1": "1"})
}
