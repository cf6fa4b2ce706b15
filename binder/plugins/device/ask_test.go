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
)

func TestParseShare(t *testing.T) {
	const millionth = share(1)
	cases := map[string]struct {
		reason, text string
		want         share
	}{
		"Whole":          {reason: "a whole device", text: "1", want: whole},
		"WholeWithZeros": {reason: "zeros behind the point change nothing", text: "1.000000", want: whole},
		"Half":           {reason: "a half", text: "0.5", want: whole / 2},
		"HalfWithZeros":  {reason: "the same half", text: "0.500000", want: whole / 2},
		"Smallest":       {reason: "there is nothing smaller", text: "0.000001", want: millionth},
		"Third":          {reason: "six digits are enough", text: "0.333333", want: 333333},
		"TooFine":        {reason: "rounding would make shares that do not add up", text: "0.3333333"},
		"Nothing":        {reason: "a share of nothing holds nothing", text: "0"},
		"NothingFine":    {reason: "neither does this", text: "0.000000"},
		"OverOne":        {reason: "there is one of each device", text: "1.000001"},
		"Two":            {reason: "there is one of each device", text: "2"},
		"NoInteger":      {reason: "one way to write a number", text: ".5"},
		"NoFraction":     {reason: "one way to write a number", text: "1."},
		"Exponent":       {reason: "one way to write a number", text: "5e-1"},
		"Comma":          {reason: "a comma separates devices", text: "0,5"},
		"Sign":           {reason: "no signs", text: "+1"},
		"Negative":       {reason: "no signs", text: "-0.5"},
		"SignInFraction": {reason: "no signs", text: "0.-5"},
		"LeadingZero":    {reason: "the end of a PCI address is no number", text: "00.0"},
		"Hexadecimal":    {reason: "digits only", text: "0x1"},
		"Underscore":     {reason: "digits only", text: "0.0_1"},
		"Fraction":       {reason: "digits only", text: "1/2"},
		"Percent":        {reason: "digits only", text: "50%"},
		"Space":          {reason: "digits only", text: "0.5 "},
		"OtherDigits":    {reason: "digits of other scripts look alike", text: "0.٥"},
		"Infinity":       {reason: "no number", text: "Inf"},
		"Empty":          {reason: "no number", text: ""},
		"Point":          {reason: "no number", text: "."},
		"TwoPoints":      {reason: "no number", text: "0.5.5"},
		"Long":           {reason: "no number", text: "0." + strings.Repeat("0", 1<<20)},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, ok := parseShare(tc.text)
			assert.Equal(t, tc.want > 0, ok, tc.reason)
			if ok {
				assert.Equal(t, tc.want, got, tc.reason)
			}
		})
	}
}

// TestEveryShareIsReadAsItIsWritten: there are no more than a million.
func TestEveryShareIsReadAsItIsWritten(t *testing.T) {
	for s := share(1); s <= whole; s++ {
		if got, ok := parseShare(s.String()); !ok || got != s {
			t.Fatalf("%d is written %s and read %d", s, s, got)
		}
	}
}

func TestParseIDs(t *testing.T) {
	long := strings.Repeat("x", maxID)
	cases := map[string]struct {
		reason, value string
		want          map[string]share
		wrong         string
	}{
		"One":            {reason: "an ID alone is all of the device", value: "GPU-1", want: map[string]share{"GPU-1": whole}},
		"Two":            {reason: "spaces around are no part of an ID", value: " GPU-1 ,\tGPU-2\n", want: map[string]share{"GPU-1": whole, "GPU-2": whole}},
		"Share":          {reason: "a share follows the colon", value: "GPU-1:0.5,GPU-2", want: map[string]share{"GPU-1": whole / 2, "GPU-2": whole}},
		"PCI":            {reason: "an ID with colons has its share", value: "0000:3b:00.0:1", want: map[string]share{"0000:3b:00.0": whole}},
		"PCIShare":       {reason: "the last colon is the share's", value: "0000:3b:00.0:0.25", want: map[string]share{"0000:3b:00.0": whole / 4}},
		"PCIWithout":     {reason: "a mistake never makes another device", value: "0000:3b:00.0", wrong: "0000:3b:00.0:1"},
		"MIG":            {reason: "IDs as drivers write them", value: "MIG-GPU-8f6d/3/0", want: map[string]share{"MIG-GPU-8f6d/3/0": whole}},
		"Unicode":        {reason: "what looks alike must not be two devices", value: "GPU-１", wrong: "printable ASCII"},
		"Control":        {reason: "messages and terminals show IDs", value: "GPU-\x1b[31m", wrong: "printable ASCII"},
		"NUL":            {reason: "messages and terminals show IDs", value: "GPU\x00", wrong: "printable ASCII"},
		"NotUTF8":        {reason: "a record is JSON", value: "GPU-\xff", wrong: "printable ASCII"},
		"SpaceInside":    {reason: "two IDs without a comma", value: "GPU-1 GPU-2", wrong: "without spaces"},
		"Longest":        {reason: "the limit", value: long, want: map[string]share{long: whole}},
		"TooLong":        {reason: "over the limit", value: long + "x", wrong: "1 to 253"},
		"Twice":          {reason: "which of the two shares would count?", value: "GPU-1:0.5,GPU-1:0.5", wrong: "named twice"},
		"TwiceMixed":     {reason: "whole and share of it", value: "GPU-1,GPU-1:0.5", wrong: "named twice"},
		"Empty":          {reason: "nothing is named", value: "", wrong: "no device ID"},
		"Blank":          {reason: "nothing is named", value: "  ", wrong: "no device ID"},
		"TrailingComma":  {reason: "something may have been cut off", value: "GPU-1,", wrong: "no device ID"},
		"TwoCommas":      {reason: "something may have been left out", value: "GPU-1,,GPU-2", wrong: "no device ID"},
		"ShareOfNothing": {reason: "no ID", value: ":0.5", wrong: "no device ID"},
		"ShareZero":      {reason: "holds nothing", value: "GPU-1:0", wrong: "over 0 and up to 1"},
		"ShareTwo":       {reason: "more than there is", value: "GPU-1:2", wrong: "over 0 and up to 1"},
		"ShareMissing":   {reason: "something was cut off", value: "GPU-1:", wrong: "over 0 and up to 1"},
		"ShareSpace":     {reason: "a share begins at its colon", value: "GPU-1: 0.5", wrong: "over 0 and up to 1"},
		"SpaceShare":     {reason: "an ID ends at its colon", value: "GPU-1 :0.5", wrong: "without spaces"},
		"CommaForPoint":  {reason: "0,5 is no half", value: "GPU-1:0,5", wrong: "over 0 and up to 1"},
		"True":           {reason: "a lock that was misspelt would be no lock", value: "true", wrong: lockKey},
		"False":          {reason: "the same", value: "GPU-1,false", wrong: lockKey},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := parseIDs(tc.value)
			if tc.wrong != "" {
				require.ErrorContains(t, err, tc.wrong, tc.reason)
				assert.Less(t, len(err.Error()), 600)
				return
			}
			require.NoError(t, err, tc.reason)
			assert.Equal(t, tc.want, got, tc.reason)
		})
	}
}

// on makes parameters of a Binding's annotations.
func on(kind string, values map[string]string) map[string]framework.Parameter {
	parameters := map[string]framework.Parameter{}
	for key, value := range values {
		parameters[key] = framework.Parameter{Annotation: "device." + framework.Domain + "/" + key, Value: value, On: framework.Object{Kind: kind, Namespace: "default", Name: "web"}}
	}
	return parameters
}

func TestParse(t *testing.T) {
	var tooMany []string
	for i := range maxDevices + 1 {
		tooMany = append(tooMany, strconv.Itoa(i))
	}
	many := tooMany[:maxDevices]
	cases := map[string]struct {
		reason string
		values map[string]string
		want   ask
		// wrong are the keys that are wrong, in order.
		wrong []string
		says  string
	}{
		"Nothing": {reason: "there may be no annotations", want: ask{devices: devices{}}},
		"Lock":    {reason: "the lock alone", values: map[string]string{lockKey: "true"}, want: ask{devices: devices{}, lock: true}},
		"NoLock":  {reason: "it can be said", values: map[string]string{lockKey: "false"}, want: ask{devices: devices{}}},
		"BadLock": {reason: "nothing else can", values: map[string]string{lockKey: "yes"}, wrong: []string{lockKey}, says: "neither true nor false"},
		"Two resources": {
			reason: "each key is a resource", values: map[string]string{"gpu": "GPU-1:0.5", "fpga": "GPU-1", lockKey: "true"},
			want: ask{lock: true, devices: devices{"gpu": {"GPU-1": whole / 2}, "fpga": {"GPU-1": whole}}},
		},
		"NoKey":   {reason: "a record cannot hold it", values: map[string]string{"": "GPU-1"}, wrong: []string{""}, says: "name a resource"},
		"TwoBad":  {reason: "all that are wrong are named", values: map[string]string{"a": "", "b": "GPU-1", "c": "x:y"}, wrong: []string{"a", "c"}},
		"Many":    {reason: "the limit", values: map[string]string{"gpu": strings.Join(many, ",")}, want: ask{devices: devices{"gpu": wholes(many)}}},
		"TooMany": {reason: "over the limit", values: map[string]string{"gpu": strings.Join(tooMany, ",")}, wrong: []string{"gpu"}, says: "more than 256 devices"},
		"TooManyTogether": {
			reason: "over the limit in all; the lock is not to blame", values: map[string]string{"a": "x", "n": strings.Join(many, ","), lockKey: "true", "z": "y"},
			wrong: []string{"n", "z"}, says: "more than 256 devices",
		},
		"TooLong": {reason: "nothing of it is read", values: map[string]string{"gpu": strings.Repeat("a,", 128<<10)}, wrong: []string{"gpu"}, says: "longer than 4096 bytes"},
		"TooLongTogether": {
			reason: "no longer in all", values: map[string]string{"a": strings.Repeat("a", 200), "b": strings.Repeat(strings.Repeat("b", 99)+",", 39) + "b", "lock": "x"},
			wrong: []string{"b", "lock"}, says: "longer than 4096 bytes",
		},
		"LongLock": {reason: "it is shown in part", values: map[string]string{lockKey: strings.Repeat("true", 64<<10)}, wrong: []string{lockKey}},
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
				want = append(want, "metadata.annotations[device."+framework.Domain+"/"+key+"]")
				assert.Contains(t, err.Error(), "device."+framework.Domain+"/"+key)
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

// TestManyBadAnnotations: the message does not grow with them.
func TestManyBadAnnotations(t *testing.T) {
	values := map[string]string{}
	for i := range 3000 {
		values[fmt.Sprintf("key-%04d", i)] = "?:?"
	}
	_, err := parse(on("Pod", values))
	var invalid *framework.Error
	require.ErrorAs(t, err, &invalid)
	assert.Contains(t, err.Error(), "and 2997 more are wrong")
	assert.Less(t, len(err.Error()), 2000)
	assert.Len(t, invalid.Fields, 16)
}

func TestListAndString(t *testing.T) {
	a := ask{devices: devices{"gpu": {"GPU-2": whole, "GPU-1": whole / 2}, "fpga": {"F": whole}}}
	assert.Equal(t, []framework.Device{{Request: "fpga", Name: "F"}, {Request: "gpu", Name: "GPU-1", Share: "0.5"}, {Request: "gpu", Name: "GPU-2"}}, a.list())
	assert.Equal(t, "F (fpga), 0.5 of GPU-1 (gpu), GPU-2 (gpu)", a.devices.String())
	var ids []string
	for i := range 256 {
		ids = append(ids, strconv.Itoa(i))
	}
	assert.True(t, strings.HasSuffix(devices{"gpu": wholes(ids)}.String(), ", and 248 more"), "the text stays short")
}
