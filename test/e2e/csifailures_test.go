// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/test/gen"
)

// If the driver has no storage in the zone, the provisioner removes selected-node, and the pod gets another node.
func TestCSIResourceExhausted(t *testing.T) {
	t.Parallel()
	for name, by := range binders {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newCSIBench(t)
			b.claim("data", b.lateClass(csiUnlimited, csiUnlimited, gen.Parameter("delay", "1s"),
				gen.Parameter("fail", "resource-exhausted"), gen.Parameter("failZones", csiZoneA)))
			b.allow(csiA)
			b.newPod("pod", by.scheduler, "data", b.steered())
			refusal := "the provisioner failed on node " + csiA + " and requests another node"
			switch {
			case by.scheduler == byHand:
				b.assertForbidden(b.bindPod("pod", csiA), "data", refusal)
				claim, err := b.client.CoreV1().PersistentVolumeClaims(b.ns).Get(t.Context(), "data", metav1.GetOptions{})
				require.NoError(t, err)
				assert.NotContains(t, claim.Annotations, volume.AnnSelectedNode)
				assert.Empty(t, b.stored(t))
				b.allow(csiB)
				require.NoError(t, b.bindPod("pod", csiB))
			case by.volumesByPrebind:
				b.untilEvent("FailedScheduling", b.ns+"/data", refusal)
			default:
				b.untilEvent("FailedScheduling")
			}
			b.untilAnyEvent("ProvisioningFailed", "ResourceExhausted")
			b.allow(csiB)
			b.forbid(csiA)
			pod := b.untilBound()
			assert.Equal(t, csiB, pod.Spec.NodeName)
			b.assertTopology(pod)
			b.assertStored("data", csiB, csiZoneB)
		})
	}
}

// The provisioner repeats other failures on the same node. The bind waits for it.
func TestCSIFailuresAreRepeated(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		reason     string
		parameters map[string]string
		event      string
	}{
		"error":   {reason: "a final error is repeated", parameters: map[string]string{"fail": "internal", "failTimes": "1"}, event: "Internal"},
		"unknown": {reason: "the creation may continue, so selected-node must stay", parameters: map[string]string{"fail": "unavailable", "failTimes": "2"}, event: "Unavailable"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newCSIBench(t)
			var options []gen.ClassOption
			for key, value := range tc.parameters {
				options = append(options, gen.Parameter(key, value))
			}
			b.claim("data", b.lateClass(csiUnlimited, csiUnlimited, options...))
			b.newPod("pod", byHand, "data")
			require.NoError(t, b.bindPod("pod", csiA), tc.reason)
			b.untilAnyEvent("ProvisioningFailed", tc.event)
			b.assertTopology(b.untilBound())
			b.assertStored("data", csiA, csiZoneA)
		})
	}
}

// The creation of a volume continues after a timeout of the provisioner's call, and the next call returns the volume. The bind waits for it.
func TestCSITimeout(t *testing.T) {
	t.Parallel()
	b := newCSIBench(t)
	b.claim("data", b.lateClass(csiUnlimited, csiUnlimited, gen.Parameter("delay", "20s")))
	b.newPod("pod", byHand, "data")
	got := b.postWaiting(b.binding(csiA))
	assert.Equal(t, http.StatusTooManyRequests, got.code)
	b.assertDenied(got.status, metav1.StatusReasonTooManyRequests, "volumebinding", "PersistentVolumeClaim "+b.ns+"/data")
	// The PV controller may be too busy to name the provisioner in time.
	waiting := "waiting for provisioning on " + csiA
	assert.Contains(t, got.status.Message, waiting)
	b.untilEvent("WaitingForPreBind", b.ns+"/data", waiting)

	require.NoError(t, b.bindPod("pod", csiA))
	b.untilAnyEvent("ProvisioningFailed", "DeadlineExceeded")
	b.assertTopology(b.untilBound())
	b.assertStored("data", csiA, csiZoneA)
}

// A volume that is being provisioned for a deleted pod is used by the next pod.
func TestCSIPodDeletedWhileProvisioning(t *testing.T) {
	t.Parallel()
	for name, by := range binders {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newCSIBench(t)
			b.claim("data", b.lateClass(csiUnlimited, csiUnlimited, gen.Parameter("delay", provisioningDuration)))
			b.allow(csiA)
			b.newPod("pod", by.scheduler, "data", b.steered())
			var first <-chan error
			if by.scheduler == byHand {
				first = b.beginBind(csiA)
			}
			require.Equal(t, csiA, b.untilSelected())
			b.deletePod()
			if by.scheduler == byHand {
				err := b.end(first)
				assert.True(t, isStale(err) || apierrors.IsNotFound(err), "the pod should be deleted: %v", err)
			}
			b.newPod("pod", by.scheduler, "data")
			if by.scheduler == byHand {
				// The volume may exist by now.
				err := b.bindPod("pod", csiB)
				require.True(t, apierrors.IsForbidden(err), "%v", err)
				assert.Regexp(t, "volumebinding: .*(its volume is being provisioned on node "+csiA+"|its node affinity excludes node "+csiB+")", err.Error())
				require.NoError(t, b.bindPod("pod", csiA))
			}
			pod := b.untilBound()
			assert.Equal(t, csiA, pod.Spec.NodeName)
			b.assertStored("data", csiA, csiZoneA)
		})
	}
}

// The deletion of a claim during provisioning ends the bind. The provisioner deletes the volume.
func TestCSIClaimDeletedWhileProvisioning(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		reason, delay string
		// event is the event to wait for before the deletion.
		event string
	}{
		"during the first call": {reason: "the volume exists when the call returns", delay: provisioningDuration, event: "Provisioning"},
		"after a timeout":       {reason: "the driver creates the volume between two calls", delay: "7s", event: "DeadlineExceeded"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newCSIBench(t)
			b.claim("data", b.lateClass(csiUnlimited, csiUnlimited, gen.Parameter("delay", tc.delay)))
			b.newPod("pod", byHand, "data")
			first := b.beginBind(csiA)
			b.untilAnyEvent(tc.event)
			require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Len(c, b.stored(c), 1) }, patience, 50*time.Millisecond, tc.reason)
			require.NoError(t, b.client.CoreV1().PersistentVolumeClaims(b.ns).Delete(t.Context(), "data", metav1.DeleteOptions{}))
			err := b.end(first)
			require.True(t, apierrors.IsForbidden(err), "%v", err)
			assert.ErrorContains(t, err, b.ns+"/data")
			b.untilNoneStored()
			assert.Empty(t, b.until("still unbound", notBound).Spec.NodeName)

			b.claim("data", b.lateClass(csiUnlimited, csiUnlimited))
			require.NoError(t, b.bindPod("pod", csiB))
			b.assertStored("data", csiB, csiZoneB)
		})
	}
}
