// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/prebind/prebind/binder/ledger"
)

func TestDecodePool(t *testing.T) {
	good := `{"claim":"default/c","uid":"u","attempt":"here-1"}`
	cases := map[string]struct {
		reason string
		data   map[string]string
		want   map[string]entry
		broken bool
	}{
		"Empty":     {reason: "a pool with nothing given", data: map[string]string{"driver": "d", "pool": "p"}, want: map[string]entry{}},
		"Entry":     {reason: "a device that is given", data: map[string]string{"driver": "d", "pool": "p", "device.gpu-0": good}, want: map[string]entry{"gpu-0": {Claim: ledger.ObjectName{Namespace: "default", Name: "c"}, UID: "u", Attempt: "here-1"}}},
		"Note":      {reason: "an operator's note is no device", data: map[string]string{"driver": "d", "pool": "p", "note": "x"}, want: map[string]entry{}},
		"NoDriver":  {reason: "it says of nothing what it is", data: map[string]string{"pool": "p"}, broken: true},
		"NoPool":    {reason: "the same", data: map[string]string{"driver": "d"}, broken: true},
		"NoJSON":    {reason: "what cannot be read may be anybody's: nothing is guessed", data: map[string]string{"driver": "d", "pool": "p", "device.gpu-0": "mine"}, broken: true},
		"NoClaim":   {reason: "the same", data: map[string]string{"driver": "d", "pool": "p", "device.gpu-0": `{"uid":"u"}`}, broken: true},
		"NoUID":     {reason: "the same", data: map[string]string{"driver": "d", "pool": "p", "device.gpu-0": `{"claim":"default/c"}`}, broken: true},
		"BadClaim":  {reason: "no namespace", data: map[string]string{"driver": "d", "pool": "p", "device.gpu-0": `{"claim":"c","uid":"u"}`}, broken: true},
		"HalfClaim": {reason: "no name", data: map[string]string{"driver": "d", "pool": "p", "device.gpu-0": `{"claim":"default/","uid":"u"}`}, broken: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r, err := decodePool(tc.data)
			if tc.broken {
				require.Error(t, err, tc.reason)
				return
			}
			require.NoError(t, err, tc.reason)
			assert.Equal(t, tc.want, r.entries, tc.reason)
		})
	}
}

func TestPoolRecordName(t *testing.T) {
	name := poolID{"gpu.example.com", "rack-1/node-a"}.recordName()
	assert.Empty(t, validation.IsDNS1123Subdomain(name), "pools have slashes in their names")
	assert.NotEqual(t, name, poolID{"gpu.example.com", "rack-1/node-b"}.recordName())
	assert.NotEqual(t, poolID{"a", "b"}.recordName(), poolID{"a\nb", ""}.recordName())
	data, err := (&poolRecord{id: poolID{"d", "p"}, entries: map[string]entry{"gpu-0": {Claim: ledger.ObjectName{Namespace: "n", Name: "c"}, UID: "u"}}}).Encode()
	require.NoError(t, err)
	for key := range data {
		assert.Empty(t, validation.IsConfigMapKey(key))
	}
}

func FuzzDecodePool(f *testing.F) {
	f.Add("d", "p", "gpu-0", `{"claim":"default/c","uid":"u","attempt":"here-1"}`)
	f.Add("d", "p", "", `{"claim":"/","uid":"u"}`)
	f.Add("", "", "x", "null")
	f.Fuzz(func(t *testing.T, driver, pool, device, text string) {
		r, err := decodePool(map[string]string{driverField: driver, poolField: pool, devicePrefix + device: text})
		if err != nil {
			return
		}
		require.Contains(t, r.entries, device, "a device that is in a record is not overlooked")
		data, err := r.Encode()
		require.NoError(t, err)
		again, err := decodePool(data)
		require.NoError(t, err, "what was read can be written")
		assert.Equal(t, r.entries, again.entries)
	})
}
