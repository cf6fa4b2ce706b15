// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

const key = "example.com/zone"

func in(zone string) *csi.Topology { return &csi.Topology{Segments: map[string]string{key: zone}} }

// request is a request as external-provisioner sends it for a claim with selected-node in the first zone.
func request(name string, bytes int64, parameters map[string]string, zones ...string) *csi.CreateVolumeRequest {
	out := &csi.CreateVolumeRequest{
		Name:                      name,
		CapacityRange:             &csi.CapacityRange{RequiredBytes: bytes},
		VolumeCapabilities:        []*csi.VolumeCapability{{}},
		Parameters:                parameters,
		AccessibilityRequirements: &csi.TopologyRequirement{},
	}
	for _, zone := range zones {
		out.AccessibilityRequirements.Preferred = append(out.AccessibilityRequirements.Preferred, in(zone))
	}
	return out
}

// assertCode checks the gRPC code of an error, OK for none.
func assertCode(t *testing.T, want codes.Code, err error) {
	t.Helper()
	if status.Code(err) != want {
		t.Fatalf("error %v, want code %s", err, want)
	}
}

func TestDriver_Failures(t *testing.T) {
	tests := map[string]struct {
		reason     string
		parameters map[string]string
		zone       string
		want       []codes.Code // of the first calls
	}{
		"none":       {reason: "a call is idempotent", zone: "a", want: []codes.Code{codes.OK, codes.OK}},
		"always":     {reason: "failTimes has no limit by default", parameters: map[string]string{"fail": "internal"}, zone: "a", want: []codes.Code{codes.Internal, codes.Internal}},
		"once":       {reason: "the second creation succeeds", parameters: map[string]string{"fail": "unavailable", "failTimes": "1"}, zone: "a", want: []codes.Code{codes.Unavailable, codes.OK}},
		"this zone":  {reason: "the preferred zone decides", parameters: map[string]string{"fail": "internal", "failZones": "a"}, zone: "a", want: []codes.Code{codes.Internal}},
		"other zone": {reason: "the preferred zone decides", parameters: map[string]string{"fail": "internal", "failZones": "b"}, zone: "a", want: []codes.Code{codes.OK}},
		"wrong name": {reason: "the class is invalid", parameters: map[string]string{"x": "y"}, zone: "a", want: []codes.Code{codes.InvalidArgument}},
		"too large":  {reason: "the pool is smaller than the volume", parameters: map[string]string{"capacity": "a=1,b=10"}, zone: "a", want: []codes.Code{codes.ResourceExhausted}},
		"fits":       {reason: "the pool is large enough", parameters: map[string]string{"capacity": "a=1,b=10"}, zone: "b", want: []codes.Code{codes.OK}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			d := newDriver("driver", key, clock.RealClock{})
			for _, want := range tc.want {
				response, err := d.CreateVolume(t.Context(), request("pvc-1", 5, tc.parameters, tc.zone, "z"))
				assertCode(t, want, err)
				if err == nil && response.GetVolume().GetAccessibleTopology()[0].GetSegments()[key] != tc.zone {
					t.Errorf("volume %v, want one in zone %s: %s", response, tc.zone, tc.reason)
				}
			}
			if kept := len(d.list()) == 1; kept != (tc.want[len(tc.want)-1] == codes.OK) {
				t.Errorf("volumes %v: %s", d.list(), tc.reason)
			}
		})
	}
}

// The creation of a volume continues after the end of the call, and the next call returns the volume.
func TestDriver_CreationOutlivesTheCall(t *testing.T) {
	now := clocktesting.NewFakeClock(time.Now())
	d := newDriver("driver", key, now)
	slow := request("pvc-1", 5, map[string]string{"delay": "1m", metadataPrefix + "pvc/namespace": "ns", metadataPrefix + "pvc/name": "data"}, "a")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := d.CreateVolume(ended, slow)
	assertCode(t, codes.Canceled, err)
	want := volume{Name: "pvc-1", Claim: "ns/data", Zone: "a", Bytes: 5, Pending: true}
	if got := d.list(); len(got) != 1 || !reflect.DeepEqual(got[0], want) {
		t.Fatalf("volumes %+v, want %+v", got, want)
	}
	_, err = d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "pvc-1"})
	assertCode(t, codes.Aborted, err)

	now.Step(time.Minute)
	_, err = d.CreateVolume(t.Context(), slow)
	assertCode(t, codes.OK, err)
	_, err = d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "pvc-1"})
	assertCode(t, codes.OK, err)
	if got := d.list(); len(got) != 0 {
		t.Errorf("volumes %+v after deletion", got)
	}
}

// The volumes of a pool use the capacity of their zone.
func TestDriver_Capacity(t *testing.T) {
	d := newDriver("driver", key, clock.RealClock{})
	class := map[string]string{"pool": "p", "capacity": "a=10,b=20", "maximumVolumeSize": "8"}
	assertFree := func(zone string, want int64) {
		t.Helper()
		got, err := d.GetCapacity(t.Context(), &csi.GetCapacityRequest{Parameters: class, AccessibleTopology: in(zone)})
		assertCode(t, codes.OK, err)
		if got.GetAvailableCapacity() != want || got.GetMaximumVolumeSize().GetValue() != 8 {
			t.Errorf("capacity of zone %s is %v, want %d", zone, got, want)
		}
	}
	for name, parameters := range map[string]map[string]string{"ours": class, "other": {"pool": "q", "capacity": "a=10"}} {
		_, err := d.CreateVolume(t.Context(), request(name, 6, parameters, "a"))
		assertCode(t, codes.OK, err)
	}
	assertFree("a", 4)
	assertFree("b", 20)
	assertFree("unknown", 0)
	_, err := d.CreateVolume(t.Context(), request("second", 6, class, "a"))
	assertCode(t, codes.ResourceExhausted, err)
	_, err = d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "ours"})
	assertCode(t, codes.OK, err)
	assertFree("a", 10)
}
