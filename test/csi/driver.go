// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// failZone is the parameter of a StorageClass with the zone in which each creation fails because the storage is exhausted.
const failZone = "failZone"

// driver implements the Identity and the Controller service. It is safe for concurrent use.
type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer

	name, key string
	// zones contains the bytes of storage in each zone.
	zones map[string]int64

	mu      sync.Mutex
	volumes map[string]volume // by name, which is also their ID
}

type volume struct {
	zone  string
	bytes int64
}

// GetPluginInfo implements csi.IdentityServer.
func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.name, VendorVersion: "test"}, nil
}

// Probe implements csi.IdentityServer.
func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// GetPluginCapabilities implements csi.IdentityServer.
func (d *driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	out := &csi.GetPluginCapabilitiesResponse{}
	for _, service := range []csi.PluginCapability_Service_Type{
		csi.PluginCapability_Service_CONTROLLER_SERVICE,
		csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS,
	} {
		out.Capabilities = append(out.Capabilities, &csi.PluginCapability{
			Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: service}},
		})
	}
	return out, nil
}

// ControllerGetCapabilities implements csi.ControllerServer.
func (d *driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	out := &csi.ControllerGetCapabilitiesResponse{}
	for _, rpc := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY,
	} {
		out.Capabilities = append(out.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: rpc}},
		})
	}
	return out, nil
}

// GetCapacity implements csi.ControllerServer.
func (d *driver) GetCapacity(_ context.Context, request *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &csi.GetCapacityResponse{AvailableCapacity: d.free(request.GetAccessibleTopology().GetSegments()[d.key])}, nil
}

// CreateVolume implements csi.ControllerServer. It creates each volume in the first preferred zone, which is that of the selected node.
func (d *driver) CreateVolume(_ context.Context, request *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	preferred := request.GetAccessibilityRequirements().GetPreferred()
	if request.GetName() == "" || len(request.GetVolumeCapabilities()) == 0 || len(preferred) == 0 {
		return nil, status.Error(codes.InvalidArgument, "name, volume_capabilities and preferred topologies are required")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	v, exists := d.volumes[request.GetName()]
	if !exists {
		v = volume{zone: preferred[0].GetSegments()[d.key], bytes: request.GetCapacityRange().GetRequiredBytes()}
		if request.GetParameters()[failZone] == v.zone || d.free(v.zone) < v.bytes {
			return nil, status.Errorf(codes.ResourceExhausted, "zone %q has less than %d bytes", v.zone, v.bytes)
		}
		d.volumes[request.GetName()] = v
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{
		VolumeId:           request.GetName(),
		CapacityBytes:      v.bytes,
		AccessibleTopology: []*csi.Topology{{Segments: map[string]string{d.key: v.zone}}},
	}}, nil
}

// DeleteVolume implements csi.ControllerServer.
func (d *driver) DeleteVolume(_ context.Context, request *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.volumes, request.GetVolumeId())
	return &csi.DeleteVolumeResponse{}, nil
}

// free returns the unused bytes in the zone. It must be called with mu held.
func (d *driver) free(zone string) int64 {
	left := d.zones[zone]
	for _, v := range d.volumes {
		if v.zone == zone {
			left -= v.bytes
		}
	}
	return left
}
