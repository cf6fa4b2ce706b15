// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeready

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/internal/volumes"
	"github.com/prebind/prebind/test/gen"
)

// The cache keeps what the checks read.
func TestTransforms(t *testing.T) {
	migrated := gen.CSINode("node-a", "kubernetes.io/gce-pd")
	migrated.Spec.Drivers = []storagev1.CSINodeDriver{theDriver(25), {Name: "b"}}
	cases := map[string]struct {
		reason    string
		object    client.Object
		transform func(any) (any, error)
		same      func(t *testing.T, got client.Object)
	}{
		"CSINode": {reason: "drivers, limits and migrated plugins are kept", object: migrated, transform: volumes.CSINodes.Transform, same: func(t *testing.T, got client.Object) {
			node, ok := got.(*storagev1.CSINode)
			require.True(t, ok)
			assert.Equal(t, int32(25), *registered(node, driverName).Allocatable.Count)
			assert.NotNil(t, registered(node, "b"))
			assert.Empty(t, node.Spec.Drivers[0].NodeID)
			assert.Equal(t, "pd.csi.storage.gke.io", migratedDriver("kubernetes.io/gce-pd", node))
		}},
		"Agent": {reason: "the node, its address, the owner and the readiness are kept", object: hosted("192.0.2.1"), transform: (&agent{podsSelector: labels.Everything()}).pods().Transform, same: func(t *testing.T, got client.Object) {
			pod, ok := got.(*corev1.Pod)
			require.True(t, ok)
			assert.Equal(t, "node-a", pod.Spec.NodeName)
			assert.Equal(t, "192.0.2.1", pod.Status.HostIP)
			assert.True(t, isReady(pod))
			assert.True(t, metav1.IsControlledBy(pod, daemon("cni")))
		}},
		"Attachment": {reason: "the volume and the driver are kept", object: attached("a", "node-a", "pv-1"), transform: attachments.Transform, same: func(t *testing.T, got client.Object) {
			assert.Equal(t, attached("a", "node-a", "pv-1"), got)
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			trimmed, err := tc.transform(tc.object)
			require.NoError(t, err)
			again, err := tc.transform(trimmed)
			require.NoError(t, err)
			assert.Equal(t, trimmed, again, "an informer can transform an object twice")
			object, ok := trimmed.(client.Object)
			require.True(t, ok)
			assert.Equal(t, client.ObjectKeyFromObject(tc.object), client.ObjectKeyFromObject(object))
			tc.same(t, object)
		})
	}
}

// A pod that is not ready is like none.
func TestTrimAgent_HidesOtherPods(t *testing.T) {
	alone := agentOn("node-a", "cni", true)
	alone.OwnerReferences = nil
	for name, pod := range map[string]*corev1.Pod{
		"NotReady": agentOn("node-a", "cni", false), "Ending": agentOn("node-a", "cni", true, gen.Terminating()), "Alone": alone,
	} {
		assert.Empty(t, nodeOf(trimAgent(pod)), name)
	}
}

// A plugin without agents or volume checks watches nothing for them.
func TestRegistration_FollowsTheArguments(t *testing.T) {
	names := func(a *Arguments) []string {
		var all []string
		for _, s := range selections("", a) {
			require.NoError(t, s.Check())
			all = append(all, s.Name)
		}
		return all
	}
	assert.Equal(t, []string{"volumes/claims", "volumes/volumes", "volumes/csinodes", "node-ready/attachments"}, names(defaults()))
	assert.Equal(t, []string{"node-ready/daemonsets/network", "node-ready/agent/network/app=cni"}, names(only(withAgent(""), checkAgents)))
	assert.Empty(t, names(only(withAgent(""), checkConditions)))
}
