// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package deviceinfo is the mutator that adds the devices of the pod as annotations
// device-info.prebind.dev/<request>.
//
// The value is a list of devices, separated by commas, in the order of their
// allocation. The format is driver/pool/device for a device of a ResourceClaim, and the name for any
// other device. A share follows after a colon:
//
//	device-info.prebind.dev/gpu: gpu.example.com/node-a/gpu-0,gpu.example.com/node-a/gpu-3
//	device-info.prebind.dev/fpga: F-1:0.5
package deviceinfo

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/mutators/internal/keys"
)

// Name is the name of the mutator.
const Name = "device-info"

// Registration returns the registry entry of the mutator.
func Registration() mutators.Registration {
	return mutators.Registration{
		Name:        Name,
		Description: "the pod's devices of the plugin device and of ResourceClaims",
		Claims:      true,
		New:         func(v1alpha1.Arguments) (mutators.Mutator, error) { return New(), nil },
	}
}

// hashLength is the length of the hash in a shortened key, in characters.
const hashLength = 8

// Mutator adds the devices; see New.
type Mutator struct{}

// New returns the mutator.
func New() Mutator { return Mutator{} }

// Name implements mutators.Mutator.
func (Mutator) Name() string { return Name }

// Mutate returns one annotation for each request.
func (Mutator) Mutate(in mutators.Input) (mutators.Output, error) {
	var missing []string
	if in.DevicesErr != nil {
		missing = []string{"the devices of its ResourceClaims are unknown: " + in.DevicesErr.Error()}
	}
	annotations := make(map[string]string, len(in.Devices))
	for i := range in.Devices {
		key, device := keyOf(in.Devices[i].Request), text(&in.Devices[i])
		if had, more := annotations[key]; more {
			device = had + "," + device
		}
		annotations[key] = device
	}
	return mutators.Output{Annotations: annotations, Missing: missing}, nil
}

func text(d *mutators.Device) string {
	name := d.Name
	if d.Driver != "" {
		name = d.Driver + "/" + d.Pool + "/" + d.Name
	}
	switch {
	case d.Share != "":
		name += ":" + d.Share
	case d.Driver == "" && strings.Contains(name, ":"):
		name += ":1" // The text after the last colon is the share.
	}
	return name
}

// keyOf returns an annotation key for a request. The subrequest gpu/large of a ResourceClaim becomes gpu.large. A key
// that is too long ends with a hash of the request, so that keys stay unique.
func keyOf(request string) string {
	key := strings.ReplaceAll(request, "/", ".")
	if len(key) <= keys.MaxLength {
		return key
	}
	sum := sha256.Sum256([]byte(request))
	return key[:keys.MaxLength-1-hashLength] + "-" + hex.EncodeToString(sum[:])[:hashLength]
}
