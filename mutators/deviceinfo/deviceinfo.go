// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package deviceinfo is the mutator that tells a pod which devices it got, by
// request, as annotations device-info.<domain>/<request>.
//
// The value lists the devices in the order in which they were given, without
// duplicates and joined by commas. A device is driver/pool/device where a driver
// allocated it, else its name alone; a share of it follows behind a colon:
//
//	device-info.prebind.dev/gpu: gpu.example.com/node-a/gpu-0,gpu.example.com/node-a/gpu-3
//	device-info.prebind.dev/fpga: F-1:0.5
package deviceinfo

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/mutators/internal/keys"
)

// Name of the mutator.
const Name = "device-info"

// hashLength is that of the end of a key that was cut.
const hashLength = 8

// Mutator tells about the devices; see New.
type Mutator struct{}

var _ mutators.Mutator = Mutator{}

// New returns the mutator. It has no options.
func New() Mutator { return Mutator{} }

// Name implements mutators.Mutator.
func (Mutator) Name() string { return Name }

// Mutate returns one annotation for each request.
func (Mutator) Mutate(in mutators.Input) (mutators.Output, error) {
	var missing []string
	if in.DevicesErr != nil {
		missing = []string{"the devices of its ResourceClaims are not known: " + in.DevicesErr.Error()}
	}
	if len(in.Devices) == 0 {
		return mutators.Output{Missing: missing}, nil
	}
	annotations := make(map[string]string, len(in.Devices))
	for i := range in.Devices {
		key, device := keyOf(in.Devices[i].Request), text(&in.Devices[i])
		switch had, more := annotations[key]; {
		case !more:
			annotations[key] = device
		case !lists(had, device):
			annotations[key] = had + "," + device
		}
	}
	return mutators.Output{Annotations: annotations, Missing: missing}, nil
}

func text(d *mutators.Device) string {
	name := d.Name
	if d.Driver != "" {
		name = d.Driver + "/" + d.Pool + "/" + d.Name
	}
	if d.Share != "" {
		name += ":" + d.Share
	}
	return name
}

// lists says whether the list has the device already.
func lists(list, device string) bool {
	for had := range strings.SplitSeq(list, ",") {
		if had == device {
			return true
		}
	}
	return false
}

// keyOf makes a valid annotation key of a request. A subrequest of a
// ResourceClaim, gpu/large, becomes gpu.large. Any other character that a key
// can't have becomes '-', or goes where the key begins or ends with it. What is
// too long, or has nothing left, ends with a hash of the request, so that two of
// them stay apart.
func keyOf(request string) string {
	if keys.Valid(request) {
		return request
	}
	key := strings.Map(func(r rune) rune {
		switch {
		case r == '/':
			return '.'
		case r < 0x80 && keys.Alphanumeric(byte(r)), r == '-', r == '_', r == '.':
			return r
		default:
			return '-'
		}
	}, request)
	long := len(key) > keys.MaxLength
	if key = strings.Trim(key, "-_."); key != "" && !long {
		return key
	}
	if key == "" {
		key = "request"
	}
	sum := sha256.Sum256([]byte(request))
	return key[:min(len(key), keys.MaxLength-1-hashLength)] + "-" + hex.EncodeToString(sum[:])[:hashLength]
}
