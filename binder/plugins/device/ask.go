// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/text"
)

const (
	// lockKey is the only key of the plugin that is not a resource.
	lockKey = "node-lock"
	// maxText limits the keys and values of one bind in bytes. With maxDevices and maxID it
	// keeps the record of a full node below the size limit of a ConfigMap.
	maxText    = 4 << 10
	maxDevices = 256
	maxID      = 253
	// maxGrants limits the different requests of one attempt, whose Bindings can list other devices each time.
	maxGrants = 4
	// maxEcho is the maximum length of invalid input in messages, in bytes.
	maxEcho = 80
)

// share is a part of a device in millionths. Its text form is a decimal number greater than
// 0 and at most 1.
type share int64

const whole = share(1_000_000)

// String returns the shortest decimal number, such as 0.5 or 1.
func (s share) String() string { return strconv.FormatFloat(float64(s)/float64(whole), 'f', -1, 64) }

// MarshalText implements encoding.TextMarshaler.
func (s share) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *share) UnmarshalText(text []byte) error {
	parsed, ok := parseShare(string(text))
	if !ok {
		return fmt.Errorf("%q: invalid share of a device", clip(string(text)))
	}
	*s = parsed
	return nil
}

// shareText is a decimal number with at most six digits after the point.
var shareText = regexp.MustCompile(`^[01](\.[0-9]{1,6})?$`)

// parseShare accepts a decimal number greater than 0 and at most 1, with at most six digits
// after the point.
func parseShare(text string) (share, bool) {
	if !shareText.MatchString(text) {
		return 0, false
	}
	number, err := strconv.ParseFloat(text, 64)
	parsed := share(math.Round(number * float64(whole)))
	return parsed, err == nil && parsed > 0 && parsed <= whole
}

// devices contains shares by resource key and device ID.
type devices map[string]map[string]share

// list returns the devices for mutators, in order.
func (d devices) list() []framework.Device {
	var list []framework.Device
	for _, key := range slices.Sorted(maps.Keys(d)) {
		for _, id := range slices.Sorted(maps.Keys(d[key])) {
			one := framework.Device{Request: key, Name: id}
			if s := d[key][id]; s != whole {
				one.Share = s.String()
			}
			list = append(list, one)
		}
	}
	return list
}

// String lists the first devices on one line, in order.
func (d devices) String() string {
	var parts []string
	for _, one := range d.list() {
		part := one.Name + " (" + one.Request + ")"
		if one.Share != "" {
			part = one.Share + " of " + part
		}
		parts = append(parts, part)
	}
	return strings.Join(text.Shorten(parts, 8), ", ")
}

func (d devices) equal(other devices) bool {
	return maps.EqualFunc(d, other, maps.Equal[map[string]share, map[string]share])
}

// ask contains the requests of a bind.
type ask struct {
	devices devices
	// lock requests the node lock.
	lock bool
}

func (a ask) nothing() bool { return len(a.devices) == 0 && !a.lock }

// parse reads the annotations of the plugin. Its error lists all invalid ones.
func parse(parameters map[string]framework.Parameter) (ask, error) {
	a := ask{devices: devices{}}
	var wrong []*framework.Error
	text, count := 0, 0
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		p := parameters[key]
		if key != lockKey {
			text += len(key) + len(p.Value)
		}
		var err error
		switch {
		case key == lockKey && (p.Value == "true" || p.Value == "false"):
			a.lock = p.Value == "true"
		case key == lockKey:
			err = fmt.Errorf("must be true or false, got %q", clip(p.Value))
		case key == "":
			err = errors.New("the key needs a resource name after the slash")
		case text > maxText:
			err = fmt.Errorf("the annotations that list devices exceed %d bytes in total", maxText)
		default:
			a.devices[key], err = parseIDs(p.Value)
			if count += len(a.devices[key]); count > maxDevices {
				err = fmt.Errorf("the annotations list more than %d devices in total", maxDevices)
			}
		}
		if err != nil {
			wrong = append(wrong, framework.Invalid(p.On, p.Annotation+": "+err.Error(), p.Field(err.Error())))
		}
	}
	if len(wrong) > 0 {
		return ask{}, framework.InvalidParameters(wrong).Advise("list devices as in GPU-1,GPU-2 and shares of devices as in GPU-1:0.5")
	}
	return a, nil
}

// parseIDs parses a list such as GPU-1,GPU-2:0.5. The text after the last colon of an entry
// is always a share, so that a mistake in a share cannot select another device. An ID that
// contains colons therefore requires a share.
func parseIDs(value string) (map[string]share, error) {
	ids := map[string]share{}
	for entry := range strings.SplitSeq(value, ",") {
		id, s := strings.TrimSpace(entry), whole
		if colon := strings.LastIndex(id, ":"); colon >= 0 {
			var ok bool
			if s, ok = parseShare(id[colon+1:]); !ok {
				return nil, fmt.Errorf("%q: the share after the last colon must be greater than 0 and at most 1, such as 0.5; an ID that contains colons requires a share, as in 0000:3b:00.0:1", clip(id))
			}
			id = id[:colon]
		}
		if !validID.MatchString(id) {
			return nil, fmt.Errorf("%q: invalid device ID: must be 1 to %d printable ASCII characters without spaces and commas", clip(id), maxID)
		}
		if id == "true" || id == "false" {
			return nil, fmt.Errorf("%q: invalid device ID: only the key %s has this value", id, lockKey)
		}
		if _, twice := ids[id]; twice {
			return nil, fmt.Errorf("device %q is listed twice", clip(id))
		}
		ids[id] = s
	}
	return ids, nil
}

// validID matches the ID of a device. Its maximum length is maxID.
var validID = regexp.MustCompile(fmt.Sprintf("^[!-~]{1,%d}$", maxID))

// clip limits invalid input in messages.
func clip(s string) string { return text.Clip(s, maxEcho) }
