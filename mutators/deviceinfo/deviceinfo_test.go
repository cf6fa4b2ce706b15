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
		"None":      {reason: "most pods have none"},
		"Named":     {reason: "a device plugin's has its name alone", devices: []mutators.Device{{Request: "gpu", Name: "GPU-1"}}, want: map[string]string{"gpu": "GPU-1"}},
		"Allocated": {reason: "a driver's has a driver and a pool", devices: []mutators.Device{{Request: "gpu", Driver: "gpu.example.com", Pool: "node-a", Name: "gpu-0"}}, want: map[string]string{"gpu": "gpu.example.com/node-a/gpu-0"}},
		"Share":     {reason: "the value contains the share", devices: []mutators.Device{{Request: "gpu", Name: "GPU-1", Share: "0.5"}, {Request: "nic", Driver: "d", Pool: "p", Name: "n", Share: "s1"}}, want: map[string]string{"gpu": "GPU-1:0.5", "nic": "d/p/n:s1"}},
		"InOrder":   {reason: "in the order that they were given", devices: []mutators.Device{{Request: "gpu", Name: "b"}, {Request: "nic", Name: "n"}, {Request: "gpu", Name: "c"}, {Request: "gpu", Name: "a"}}, want: map[string]string{"gpu": "b,c,a", "nic": "n"}},
		"OneKey":    {reason: "two requests that give one key are joined", devices: []mutators.Device{{Request: "gpu/large", Name: "b"}, {Request: "gpu.large", Name: "a"}}, want: map[string]string{"gpu.large": "b,a"}},
		"Duplicate": {reason: "without duplicates", devices: []mutators.Device{{Request: "gpu/large", Name: "b"}, {Request: "gpu.large", Name: "b"}, {Request: "gpu.large", Name: "a"}, {Request: "gpu/large", Name: "b"}}, want: map[string]string{"gpu.large": "b,a"}},
		"NearlySo":  {reason: "of whole names", devices: []mutators.Device{{Request: "gpu", Name: "gpu-10"}, {Request: "gpu", Name: "gpu-1"}, {Request: "gpu", Name: "gpu-1", Share: "0.5"}}, want: map[string]string{"gpu": "gpu-10,gpu-1,gpu-1:0.5"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			before := slices.Clone(tc.devices)
			out, err := New().Mutate(mutators.Input{Devices: tc.devices})
			require.NoError(t, err)
			assert.Equal(t, mutators.Output{Annotations: tc.want}, out, tc.reason)
			assert.Equal(t, before, tc.devices, "the input is shared and does not change")
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
		"Valid":      {reason: "most are", request: "gpu-1.Large_x", want: "gpu-1.Large_x"},
		"Subrequest": {reason: "a slash becomes a dot", request: "gpu/large", want: "gpu.large"},
		"Resource":   {reason: "also one of an extended resource", request: "example.com/gpu", want: "example.com.gpu"},
		"Other":      {reason: "anything else becomes a dash, rune by rune", request: "gpu für b", want: "gpu-f-r-b"},
		"NoUTF8":     {reason: "invalid UTF-8 is replaced", request: "a\xffb", want: "a-b"},
		"Ends":       {reason: "it begins and ends with a letter or a digit", request: "/_gpu (2)", want: "gpu--2"},
		"Longest":    {reason: "63 are fine", request: strings.Repeat("a", 31) + "/" + strings.Repeat("b", 31), want: strings.Repeat("a", 31) + "." + strings.Repeat("b", 31)},
		"Long":       {reason: "64 are cut, with a hash of all", request: strings.Repeat("a", 64), want: strings.Repeat("a", 54) + "-ffe054fe"},
		"LongEnds":   {reason: "trimmed before it is cut", request: "-" + strings.Repeat("a", 70), want: strings.Repeat("a", 54) + "-699185df"},
		"LongShort":  {reason: "a shortened key differs from a short key", request: "gpu" + strings.Repeat("-", 61), want: "gpu-503ba10a"},
		"Nothing":    {reason: "where nothing is left, a hash is", request: "ключ", want: "request-1de36a32"},
		"Empty":      {reason: "also of nothing", request: "", want: "request-e3b0c442"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := keyOf(tc.request)
			assert.Equal(t, tc.want, got, tc.reason)
			assert.Empty(t, validation.IsQualifiedName("device-info.prebind.dev/"+got))
		})
	}
}

// isRequest says whether a ResourceClaim can have this request or subrequest.
func isRequest(name string) bool {
	parts := strings.Split(name, "/")
	return len(parts) <= 2 && !slices.ContainsFunc(parts, func(part string) bool { return len(validation.IsDNS1123Label(part)) > 0 })
}

// FuzzKeyOf holds that any request makes a valid key, and that long ones stay
// apart.
func FuzzKeyOf(f *testing.F) {
	long := strings.Repeat("a", 64)
	f.Add("gpu", "gpu/large")
	f.Add(long+"1", long+"2")
	f.Add("-"+long, long+"-")
	f.Add("", "///")
	f.Add("\xff", "ä\n\x00")
	f.Add(strings.Repeat("ü", 63), strings.Repeat("ü", 64))
	f.Add("gpu"+strings.Repeat("-", 61), "gpu"+strings.Repeat("-", 62))
	f.Fuzz(func(t *testing.T, a, b string) {
		for _, request := range []string{a, b} {
			key := keyOf(request)
			assert.Empty(t, validation.IsQualifiedName("device-info.prebind.dev/"+key), "%q gives %q", request, key)
			assert.Equal(t, key, keyOf(key), "a key gives itself")
			if len(validation.IsQualifiedName("x/"+request)) == 0 {
				assert.Equal(t, request, key, "a request that is a key stays as it is")
			}
		}
		if a != b && len([]rune(a)) > 63 && len([]rune(b)) > 63 {
			assert.NotEqual(t, keyOf(a), keyOf(b), "%q and %q", a, b)
		}
		if a != b && isRequest(a) && isRequest(b) {
			assert.NotEqual(t, keyOf(a), keyOf(b), "requests of ResourceClaims are DNS labels, one slash between them, and stay apart")
		}
	})
}
