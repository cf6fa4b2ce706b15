// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package provisioner

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

// nodes is a nodeGetter: names and their zones.
type nodes map[string]string

func (n nodes) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Node, error) {
	zone, ok := n[name]
	if !ok {
		return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
	}
	labels := map[string]string{corev1.LabelHostname: name}
	if zone != "" {
		labels[corev1.LabelTopologyZone] = zone
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, nil
}

func TestProvision(t *testing.T) {
	known := nodes{"zoned": "zone-1", "zoneless": ""}
	cases := map[string]struct {
		reason     string
		node       string
		parameters map[string]string
		wantKey    string // of the node affinity; empty is none
		wantValue  string
		wantState  controller.ProvisioningState
		wantErr    bool
	}{
		"node in a zone": {
			reason: "the volume is reachable from the zone", node: "zoned",
			wantKey: corev1.LabelTopologyZone, wantValue: "zone-1", wantState: controller.ProvisioningFinished,
		},
		"node in no zone": {
			reason: "the volume is the node's", node: "zoneless",
			wantKey: corev1.LabelHostname, wantValue: "zoneless", wantState: controller.ProvisioningFinished,
		},
		"hostname": {
			reason: "the class asks for it", node: "zoned", parameters: map[string]string{"affinity": "hostname"},
			wantKey: corev1.LabelHostname, wantValue: "zoned", wantState: controller.ProvisioningFinished,
		},
		"zone but none": {
			reason: "the class asks for what the node does not have", node: "zoneless", parameters: map[string]string{"affinity": "zone"},
			wantState: controller.ProvisioningFinished, wantErr: true,
		},
		"everywhere": {
			reason: "the class asks for it", node: "zoned", parameters: map[string]string{"affinity": "none"},
			wantState: controller.ProvisioningFinished,
		},
		"no node": {
			reason: "an Immediate class has no selected node", wantState: controller.ProvisioningFinished,
		},
		"node gone": {
			reason: "only another node can help", node: "gone",
			wantState: controller.ProvisioningReschedule, wantErr: true,
		},
		"error": {
			reason: "an ordinary one", node: "zoned", parameters: map[string]string{"fail": "error"},
			wantState: controller.ProvisioningFinished, wantErr: true,
		},
		"reschedule": {
			reason: "the selected node is to go", node: "zoned", parameters: map[string]string{"fail": "reschedule"},
			wantState: controller.ProvisioningReschedule, wantErr: true,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p := &provisioner{driver: DefaultName, defaults: Settings{Fail: FailNone}, nodes: known}
			volume, state, err := p.Provision(t.Context(), controller.ProvisionOptions{
				StorageClass:     &storagev1.StorageClass{Parameters: tc.parameters},
				PVName:           "pv",
				PVC:              &corev1.PersistentVolumeClaim{},
				SelectedNodeName: tc.node,
			})
			if (err != nil) != tc.wantErr || state != tc.wantState {
				t.Fatalf("want state %s and error %t, got %s and %v: %s", tc.wantState, tc.wantErr, state, err, tc.reason)
			}
			if err != nil {
				return
			}
			if volume.Spec.CSI.Driver != DefaultName || volume.Spec.CSI.VolumeHandle != "pv" {
				t.Errorf("unexpected volume source %+v", volume.Spec.CSI)
			}
			checkAffinity(t, volume.Spec.NodeAffinity, tc.wantKey, tc.wantValue)
		})
	}
}

func checkAffinity(t *testing.T, got *corev1.VolumeNodeAffinity, key, value string) {
	t.Helper()
	if key == "" {
		if got != nil {
			t.Errorf("want no node affinity, got %v", got)
		}
		return
	}
	if got == nil {
		t.Fatalf("want a node affinity to %s=%s, got none", key, value)
	}
	expression := got.Required.NodeSelectorTerms[0].MatchExpressions[0]
	if expression.Key != key || len(expression.Values) != 1 || expression.Values[0] != value {
		t.Errorf("want a node affinity to %s=%s, got %v", key, value, expression)
	}
}

func TestProvisionIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := &provisioner{defaults: Settings{Fail: FailNone}}
	_, _, err := p.Provision(ctx, controller.ProvisionOptions{
		StorageClass: &storagev1.StorageClass{Parameters: map[string]string{"delay": "1h"}},
		PVC:          &corev1.PersistentVolumeClaim{},
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("want %v, got %v", context.Canceled, err)
	}
}
