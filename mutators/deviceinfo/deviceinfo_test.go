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
	for name, tc := range map[string]struct {
		reason  string
		devices []mutators.Device
		want    map[string]string
	}{
		"None":    {reason: "a pod without devices gets no annotations", want: map[string]string{}},
		"Share":   {reason: "the value contains the share", devices: []mutators.Device{{Request: "gpu", Name: "GPU-1", Share: "0.5"}, {Request: "nic", Driver: "d", Pool: "p", Name: "n", Share: "s1"}}, want: map[string]string{"gpu": "GPU-1:0.5", "nic": "d/p/n:s1"}},
		"Colon":   {reason: "the text after the last colon is the share", devices: []mutators.Device{{Request: "gpu", Name: "0000:3b:00.0"}}, want: map[string]string{"gpu": "0000:3b:00.0:1"}},
		"InOrder": {reason: "the order of the devices is kept", devices: []mutators.Device{{Request: "gpu", Name: "b"}, {Request: "nic", Name: "n"}, {Request: "gpu", Name: "c"}, {Request: "gpu", Name: "a"}}, want: map[string]string{"gpu": "b,c,a", "nic": "n"}},
		"OneKey":  {reason: "requests with the same key are joined", devices: []mutators.Device{{Request: "gpu/large", Name: "b"}, {Request: "gpu.large", Name: "a"}}, want: map[string]string{"gpu.large": "b,a"}},
	} {
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

// A valid key is not changed, except for slashes. A key that is too long is cut and ends with a hash.
func TestKeyOf(t *testing.T) {
	for request, want := range map[string]string{
		"gpu-1.Large_x": "gpu-1.Large_x",
		strings.Repeat("a", 31) + "/" + strings.Repeat("b", 31): strings.Repeat("a", 31) + "." + strings.Repeat("b", 31),
		strings.Repeat("a", 64):                                 strings.Repeat("a", 54) + "-ffe054fe",
	} {
		assert.Equal(t, want, keyOf(request))
		assert.Empty(t, validation.IsQualifiedName("device-info.prebind.dev/"+want))
	}
}
