// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/config/v1alpha1"
)

func TestParseShare(t *testing.T) {
	got, ok := parseShare("1.000000")
	assert.True(t, ok, "zeros at the end have no effect")
	assert.Equal(t, whole, got)
	for reason, texts := range map[string][]string{
		"rounded shares would not add up":         {"0.3333333"},
		"a share holds a part of the device":      {"0", "1.000001"},
		"the number has another form":             {".5", "5e-1", "0,5", "+1", "0x1", "0.5 ", "Inf"},
		"the end of a PCI address is not a share": {"00.0"},
		"digits of other scripts look alike":      {"0.٥"},
		"the value is not a number":               {"", "0.5.5"},
		"the value is too long":                   {"0." + strings.Repeat("0", 1<<20)},
	} {
		for _, text := range texts {
			_, ok := parseShare(text)
			assert.False(t, ok, "%s: %.20q", reason, text)
		}
	}
}

func TestShare_RoundTrips(t *testing.T) {
	for s := share(1); s <= whole; s++ {
		if got, ok := parseShare(s.String()); !ok || got != s {
			t.Fatalf("%d is encoded as %s and decoded as %d", s, s, got)
		}
	}
}

// on returns the parameters of annotations on an object of the kind.
func on(kind string, values map[string]string) map[string]framework.Parameter {
	parameters := map[string]framework.Parameter{}
	for key, value := range values {
		parameters[key] = framework.Parameter{Annotation: "device." + v1alpha1.Domain + "/" + key, Value: value, On: framework.Object{Kind: kind, Namespace: "default", Name: "web"}}
	}
	return parameters
}

func TestParse(t *testing.T) {
	var tooMany []string
	for i := range maxDevices + 1 {
		tooMany = append(tooMany, strconv.Itoa(i))
	}
	many := tooMany[:maxDevices]
	var long []string
	for i := range 17 {
		long = append(long, fmt.Sprintf("%0239d", i))
	}
	value := func(value string) map[string]string { return map[string]string{"gpu": value} }
	asks := func(ids map[string]share) ask { return ask{devices: devices{"gpu": ids}} }
	invalid, longest := []string{"gpu"}, strings.Repeat("x", maxID)
	cases := map[string]struct {
		reason string
		values map[string]string
		want   ask
		// wrong lists the invalid keys in order.
		wrong []string
		says  string
	}{
		"Nothing": {reason: "annotations are optional", want: ask{devices: devices{}}},
		"Lock":    {reason: "the lock needs no devices", values: map[string]string{lockKey: "true"}, want: ask{devices: devices{}, lock: true}},
		"Two resources": {
			reason: "each key is a resource", values: map[string]string{"gpu": "GPU-1:0.5", "fpga": "GPU-1", lockKey: "true"},
			want: ask{lock: true, devices: devices{"gpu": {"GPU-1": whole / 2}, "fpga": {"GPU-1": whole}}},
		},
		"NoKey":   {reason: "a record requires a resource name", values: map[string]string{"": "GPU-1"}, wrong: []string{""}, says: "needs a resource name"},
		"Many":    {reason: "the bind has the maximum number of devices", values: map[string]string{"gpu": strings.Join(many, ",")}, want: ask{devices: devices{"gpu": wholes(many)}}},
		"TooMany": {reason: "the bind exceeds the maximum number of devices", values: map[string]string{"gpu": strings.Join(tooMany, ",")}, wrong: []string{"gpu"}, says: "more than 256 devices"},
		"Full": {
			reason: "the lock lists no devices", values: map[string]string{"xpus-of-host": strings.Join(long, ","), lockKey: "true"},
			want: ask{lock: true, devices: devices{"xpus-of-host": wholes(long)}},
		},
		"TooLong":        {reason: "a value that is too long is not parsed", values: map[string]string{"gpu": strings.Repeat("a,", 128<<10)}, wrong: []string{"gpu"}, says: "exceed 4096 bytes"},
		"Spaces":         {reason: "spaces around an ID are ignored", values: value(" GPU-1 ,\tGPU-2\n"), want: asks(map[string]share{"GPU-1": whole, "GPU-2": whole})},
		"Share":          {reason: "a share follows the colon", values: value("GPU-1:0.5,GPU-2"), want: asks(map[string]share{"GPU-1": whole / 2, "GPU-2": whole})},
		"PCI":            {reason: "an ID with colons requires a share", values: value("0000:3b:00.0:1"), want: asks(map[string]share{"0000:3b:00.0": whole})},
		"PCIWithout":     {reason: "a missing share must not select another device", values: value("0000:3b:00.0"), wrong: invalid, says: "0000:3b:00.0:1"},
		"Unicode":        {reason: "IDs that look alike must not be two devices", values: value("GPU-１"), wrong: invalid, says: "printable ASCII"},
		"SpaceInside":    {reason: "the comma between two IDs is missing", values: value("GPU-1 GPU-2"), wrong: invalid, says: "without spaces"},
		"Longest":        {reason: "the ID has the maximum length", values: value(longest), want: asks(map[string]share{longest: whole})},
		"LongID":         {reason: "the ID exceeds the maximum length", values: value(longest + "x"), wrong: invalid, says: "1 to 253"},
		"Empty":          {reason: "the list is empty", values: value(""), wrong: invalid, says: "invalid device ID"},
		"ShareOfNothing": {reason: "the ID is missing", values: value(":0.5"), wrong: invalid, says: "invalid device ID"},
		"True":           {reason: "a misspelled node-lock key must not be ignored", values: value("true"), wrong: invalid, says: lockKey},

		"LongLock": {reason: "the message shortens long values", values: map[string]string{lockKey: strings.Repeat("true", 64<<10)}, wrong: []string{lockKey}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := parse(on("Binding", tc.values))
			if tc.wrong == nil {
				require.NoError(t, err, tc.reason)
				assert.Equal(t, tc.want, got, tc.reason)
				return
			}
			var invalid *framework.Error
			require.ErrorAs(t, err, &invalid)
			assert.Equal(t, framework.KindInvalid, invalid.Kind)
			assert.Equal(t, "Binding", invalid.Object.Kind)
			assert.Contains(t, err.Error(), tc.says, tc.reason)
			assert.Less(t, len(err.Error()), 3000)
			var paths []string
			for _, f := range invalid.Fields {
				paths = append(paths, f.Path)
			}
			var want []string
			for _, key := range tc.wrong {
				want = append(want, "metadata.annotations[device."+v1alpha1.Domain+"/"+key+"]")
				assert.Contains(t, err.Error(), "device."+v1alpha1.Domain+"/"+key)
			}
			assert.Equal(t, want, paths, tc.reason)
		})
	}
}

func wholes(ids []string) map[string]share {
	all := map[string]share{}
	for _, id := range ids {
		all[id] = whole
	}
	return all
}
