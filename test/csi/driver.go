// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"k8s.io/utils/clock"
)

// unlimited is the capacity that a class without limits publishes: 1 PiB.
const unlimited = 1 << 50

// driver implements the Identity and the Controller service. It is safe for concurrent use.
type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer

	name, key string
	clock     clock.Clock

	mu      sync.Mutex
	volumes map[string]*volume // by name, which is also their ID
}

// volume is a volume, or one that is being created.
type volume struct {
	// Name is also the ID.
	Name string `json:"name"`
	// Claim is NAMESPACE/NAME of the PersistentVolumeClaim.
	Claim string `json:"claim"`
	// Zone is empty if it is not known yet.
	Zone string `json:"zone"`
	// Bytes is the size.
	Bytes int64 `json:"bytes"`
	// Pending means that it is being created.
	Pending bool `json:"pending"`

	settings settings
	done     chan struct{} // closed when it is not pending anymore
	err      error         // of a failed creation, after done
}

func newDriver(name, key string, c clock.Clock) *driver {
	return &driver{name: name, key: key, clock: c, volumes: map[string]*volume{}}
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
	s, err := parse(request.GetParameters())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return &csi.GetCapacityResponse{AvailableCapacity: d.free(s, request.GetAccessibleTopology().GetSegments()[d.key])}, nil
}

// CreateVolume implements csi.ControllerServer. The creation continues when the call ends early, like that of most storage systems;
// the next call with the same name waits for it.
func (d *driver) CreateVolume(ctx context.Context, request *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	s, err := parse(request.GetParameters())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	preferred := request.GetAccessibilityRequirements().GetPreferred()
	if request.GetName() == "" || len(request.GetVolumeCapabilities()) == 0 || len(preferred) == 0 {
		return nil, status.Error(codes.InvalidArgument, "name, volume_capabilities and preferred topologies are required")
	}
	v := d.create(request, s, preferred[0].GetSegments()[d.key])
	select {
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	case <-v.done:
	}
	if v.err != nil {
		return nil, v.err
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{
		VolumeId:           v.Name,
		CapacityBytes:      v.Bytes,
		AccessibleTopology: []*csi.Topology{{Segments: map[string]string{d.key: v.Zone}}},
	}}, nil
}

// create returns the volume with the name of the request, and begins its creation if there is none.
func (d *driver) create(request *csi.CreateVolumeRequest, s settings, zone string) *volume {
	d.mu.Lock()
	defer d.mu.Unlock()
	if v := d.volumes[request.GetName()]; v != nil {
		return v
	}
	parameters := request.GetParameters()
	v := &volume{
		Name:     request.GetName(),
		Claim:    parameters[metadataPrefix+"pvc/namespace"] + "/" + parameters[metadataPrefix+"pvc/name"],
		Zone:     zone,
		Bytes:    request.GetCapacityRange().GetRequiredBytes(),
		Pending:  true,
		settings: s,
		done:     make(chan struct{}),
	}
	d.volumes[v.Name] = v
	delay := d.clock.NewTimer(s.delay)
	go func() {
		<-delay.C()
		d.finish(v)
	}()
	return v
}

// finish completes the creation of the volume, or fails.
func (d *driver) finish(v *volume) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case slices.Contains(v.settings.failZones, v.Zone):
		v.err = status.Errorf(codes.ResourceExhausted, "the creation in zone %q fails as configured in the StorageClass", v.Zone)
	case d.free(v.settings, v.Zone) < v.Bytes:
		v.err = status.Errorf(codes.ResourceExhausted, "pool %q has less than %d bytes in zone %q", v.settings.pool, v.Bytes, v.Zone)
	}
	if v.err != nil {
		delete(d.volumes, v.Name)
	}
	v.Pending = false
	close(v.done)
}

// DeleteVolume implements csi.ControllerServer.
func (d *driver) DeleteVolume(_ context.Context, request *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if v := d.volumes[request.GetVolumeId()]; v != nil && v.Pending {
		return nil, status.Error(codes.Aborted, "the volume is being created")
	}
	delete(d.volumes, request.GetVolumeId())
	return &csi.DeleteVolumeResponse{}, nil
}

// free returns the unused bytes of the pool in the zone. It must be called with mu held.
func (d *driver) free(s settings, zone string) int64 {
	if s.capacity == nil {
		return unlimited
	}
	left := s.capacity[zone]
	for _, v := range d.volumes {
		if !v.Pending && v.settings.pool == s.pool && v.Zone == zone {
			left -= v.Bytes
		}
	}
	return max(left, 0)
}

// list returns copies of all volumes, sorted by name.
func (d *driver) list() []volume {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]volume, 0, len(d.volumes))
	for _, v := range d.volumes {
		out = append(out, volume{Name: v.Name, Claim: v.Claim, Zone: v.Zone, Bytes: v.Bytes, Pending: v.Pending})
	}
	slices.SortFunc(out, func(a, b volume) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
