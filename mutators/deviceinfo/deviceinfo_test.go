// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package deviceinfo

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/prebind/prebind/mutators"
)

func TestMutate(t *testing.T) {
	cases := map[string]struct {
		reason  string
		devices []mutators.Device
		want    map[string]string
	}{
		"None":      {reason: "a pod without devices gets no annotations", want: map[string]string{}},
		"Named":     {reason: "a device without a driver is its name", devices: []mutators.Device{{Request: "gpu", Name: "GPU-1"}}, want: map[string]string{"gpu": "GPU-1"}},
		"Allocated": {reason: "a device of a driver has a driver and a pool", devices: []mutators.Device{{Request: "gpu", Driver: "gpu.example.com", Pool: "node-a", Name: "gpu-0"}}, want: map[string]string{"gpu": "gpu.example.com/node-a/gpu-0"}},
		"Share":     {reason: "the value contains the share", devices: []mutators.Device{{Request: "gpu", Name: "GPU-1", Share: "0.5"}, {Request: "nic", Driver: "d", Pool: "p", Name: "n", Share: "s1"}}, want: map[string]string{"gpu": "GPU-1:0.5", "nic": "d/p/n:s1"}},
		"InOrder":   {reason: "the order of the devices is kept", devices: []mutators.Device{{Request: "gpu", Name: "b"}, {Request: "nic", Name: "n"}, {Request: "gpu", Name: "c"}, {Request: "gpu", Name: "a"}}, want: map[string]string{"gpu": "b,c,a", "nic": "n"}},
		"OneKey":    {reason: "requests with the same key are joined", devices: []mutators.Device{{Request: "gpu/large", Name: "b"}, {Request: "gpu.large", Name: "a"}}, want: map[string]string{"gpu.large": "b,a"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			before := slices.Clone(tc.devices)
			out, err := New().Mutate(mutators.Input{Devices: tc.devices})
			require.NoError(t, err)
			assert.Equal(t, mutators.Output{Annotations: tc.want}, out, tc.reason)
			assert.Equal(t, before, tc.devices, "the mutator does not change its input")
		})
	}
	assert.Equal(t, "device-info", New().Name())
}

func TestKeyOf(t *testing.T) {
	cases := map[string]struct {
		reason  string
		request string
		want    string
	}{
		"Valid":      {reason: "a valid key is not changed", request: "gpu-1.Large_x", want: "gpu-1.Large_x"},
		"Subrequest": {reason: "a slash becomes a dot", request: "gpu/large", want: "gpu.large"},
		"Resource":   {reason: "a slash in an extended resource becomes a dot", request: "example.com/gpu", want: "example.com.gpu"},
		"Longest":    {reason: "63 characters are allowed", request: strings.Repeat("a", 31) + "/" + strings.Repeat("b", 31), want: strings.Repeat("a", 31) + "." + strings.Repeat("b", 31)},
		"Long":       {reason: "a longer key is cut and ends with a hash", request: strings.Repeat("a", 64), want: strings.Repeat("a", 54) + "-ffe054fe"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := keyOf(tc.request)
			assert.Equal(t, tc.want, got, tc.reason)
			assert.Empty(t, validation.IsQualifiedName("device-info.prebind.dev/"+got))
		})
	}
}
