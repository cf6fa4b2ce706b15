// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/prebind/prebind/binder/ledger"
)

func TestDecodePool(t *testing.T) {
	good := `{"claim":"default/c","uid":"u","attempt":"here-1","version":"5"}`
	cases := map[string]struct {
		reason string
		data   map[string]string
		want   map[string]entry
		wrong  string
	}{
		"Empty":     {reason: "a pool can have no entries", data: map[string]string{}, want: map[string]entry{}},
		"Entry":     {reason: "Encode writes this form", data: map[string]string{"device.gpu-0": good}, want: map[string]entry{"gpu-0": {Claim: ledger.ObjectName{Namespace: "default", Name: "c"}, UID: "u", Attempt: "here-1", Version: "5"}}},
		"Note":      {reason: "a key without the prefix does not name a device", data: map[string]string{"note": "x"}, want: map[string]entry{}},
		"NoDriver":  {reason: "the pool is unknown", data: map[string]string{"driver": ""}, wrong: "driver and pool are required"},
		"NoPool":    {reason: "the pool is unknown", data: map[string]string{"pool": ""}, wrong: "driver and pool are required"},
		"NoJSON":    {reason: "any claim can have the device", data: map[string]string{"device.gpu-0": "mine"}, wrong: "invalid character"},
		"NoClaim":   {reason: "the claim is unknown", data: map[string]string{"device.gpu-0": `{"uid":"u","version":"5"}`}, wrong: "are required"},
		"NoUID":     {reason: "the claim is unknown", data: map[string]string{"device.gpu-0": `{"claim":"default/c","version":"5"}`}, wrong: "are required"},
		"NoVersion": {reason: "the entry would never be stale", data: map[string]string{"device.gpu-0": `{"claim":"default/c","uid":"u"}`}, wrong: "are required"},
		"BadClaim":  {reason: "the namespace is missing", data: map[string]string{"device.gpu-0": `{"claim":"c","uid":"u","version":"5"}`}, wrong: "namespace/name"},
		"HalfClaim": {reason: "the name is missing", data: map[string]string{"device.gpu-0": `{"claim":"default/","uid":"u","version":"5"}`}, wrong: "namespace/name"},
		"Unknown":   {reason: "a later version of Prebind wrote the entry", data: map[string]string{"device.gpu-0": `{"claim":"default/c","uid":"u","version":"5","share":"1"}`}, wrong: "unknown field"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			data := map[string]string{driverField: "d", poolField: "p"}
			maps.Copy(data, tc.data)
			r, err := decodePool(data)
			if tc.wrong != "" {
				require.ErrorContains(t, err, tc.wrong, tc.reason)
				return
			}
			require.NoError(t, err, tc.reason)
			assert.Equal(t, tc.want, r.entries, tc.reason)
		})
	}
}

func TestPoolRecordName(t *testing.T) {
	name := poolID{"gpu.example.com", "rack-1/node-a"}.recordName()
	assert.Empty(t, validation.IsDNS1123Subdomain(name), "names of pools can contain slashes")
	assert.NotEqual(t, name, poolID{"gpu.example.com", "rack-1/node-b"}.recordName())
	assert.NotEqual(t, poolID{"a", "b"}.recordName(), poolID{"a\nb", ""}.recordName())
	data, err := (&poolRecord{id: poolID{"d", "p"}, entries: map[string]entry{"gpu-0": {Claim: ledger.ObjectName{Namespace: "n", Name: "c"}, UID: "u"}}}).Encode()
	require.NoError(t, err)
	for key := range data {
		assert.Empty(t, validation.IsConfigMapKey(key))
	}
}

func FuzzDecodePool(f *testing.F) {
	f.Add("d", "p", "gpu-0", `{"claim":"default/c","uid":"u","attempt":"here-1","version":"5"}`)
	f.Add("d", "p", "", `{"claim":"/","uid":"u"}`)
	f.Add("", "", "x", "null")
	f.Fuzz(func(t *testing.T, driver, pool, device, text string) {
		r, err := decodePool(map[string]string{driverField: driver, poolField: pool, devicePrefix + device: text})
		if err != nil {
			return
		}
		require.Contains(t, r.entries, device, "decode drops no device")
		data, err := r.Encode()
		require.NoError(t, err)
		again, err := decodePool(data)
		require.NoError(t, err, "Encode writes what decode reads")
		assert.Equal(t, r.entries, again.entries)
	})
}
