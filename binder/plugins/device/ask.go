// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/prebind/prebind/binder/framework"
)

const (
	// lockKey is the only key of the plugin that is not a resource.
	lockKey = "node-lock"
	// maxText limits the keys and values of one bind in bytes. With maxDevices and maxID it
	// keeps the record of a full node below the size limit of a ConfigMap.
	maxText    = 4 << 10
	maxDevices = 256
	maxID      = 253
	// maxEcho is the maximum length of invalid input in messages, in bytes.
	maxEcho = 80
)

// share is a part of a device in millionths. Its text form is a decimal number greater than
// 0 and at most 1.
type share int64

const (
	shareDigits = 6
	whole       = share(1_000_000)
)

// String returns the shortest decimal number, such as 0.5 or 1.
func (s share) String() string { return strconv.FormatFloat(float64(s)/float64(whole), 'f', -1, 64) }

// MarshalText implements encoding.TextMarshaler.
func (s share) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *share) UnmarshalText(text []byte) error {
	parsed, ok := parseShare(string(text))
	if !ok {
		return fmt.Errorf("%q: invalid share of a device", short(string(text)))
	}
	*s = parsed
	return nil
}

// parseShare accepts a decimal number greater than 0 and at most 1, with at most six digits
// after the point.
func parseShare(text string) (share, bool) {
	integer, fraction, pointed := strings.Cut(text, ".")
	if (integer != "0" && integer != "1") || pointed && fraction == "" || len(fraction) > shareDigits {
		return 0, false
	}
	for _, c := range []byte(fraction) {
		if c < '0' || c > '9' {
			return 0, false
		}
	}
	parsed, err := strconv.ParseInt(integer+fraction+strings.Repeat("0", shareDigits-len(fraction)), 10, 64)
	return share(parsed), err == nil && parsed > 0 && share(parsed) <= whole
}

// devices contains shares by resource key and device ID.
type devices map[string]map[string]share

// String lists the first devices on one line, in order.
func (d devices) String() string {
	const most = 8
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(d)) {
		for _, id := range slices.Sorted(maps.Keys(d[key])) {
			parts = append(parts, part(key, id, d[key][id]))
		}
	}
	if more := len(parts) - most; more > 0 {
		parts = append(parts[:most], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, ", ")
}

func part(key, id string, s share) string {
	if s == whole {
		return fmt.Sprintf("%s (%s)", id, key)
	}
	return fmt.Sprintf("%s of %s (%s)", s, id, key)
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

// list returns the devices for mutators, in order.
func (a ask) list() []framework.Device {
	var list []framework.Device
	for _, key := range slices.Sorted(maps.Keys(a.devices)) {
		for _, id := range slices.Sorted(maps.Keys(a.devices[key])) {
			d := framework.Device{Request: key, Name: id}
			if s := a.devices[key][id]; s != whole {
				d.Share = s.String()
			}
			list = append(list, d)
		}
	}
	return list
}

// parse reads the annotations of the plugin. Its error lists all invalid ones.
func parse(parameters map[string]framework.Parameter) (ask, error) {
	a := ask{devices: devices{}}
	var wrong problems
	left := limits{text: maxText, devices: maxDevices}
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		p := parameters[key]
		var err error
		if key == lockKey {
			a.lock, err = parseLock(p.Value)
		} else {
			err = a.add(key, p.Value, &left)
		}
		if err != nil {
			wrong = append(wrong, problem{p, err})
		}
	}
	if len(wrong) > 0 {
		return ask{}, wrong.asError()
	}
	return a, nil
}

// limits contains the remaining bytes and devices of a bind.
type limits struct{ text, devices int }

func (a *ask) add(key, value string, left *limits) error {
	if key == "" {
		return errors.New("the key needs a resource name after the slash")
	}
	if left.text -= len(key) + len(value); left.text < 0 {
		return fmt.Errorf("the annotations that list devices exceed %d bytes in total", maxText)
	}
	ids, err := parseIDs(value)
	if err != nil {
		return err
	}
	if left.devices -= len(ids); left.devices < 0 {
		return fmt.Errorf("the annotations list more than %d devices in total", maxDevices)
	}
	a.devices[key] = ids
	return nil
}

// problem is an invalid annotation.
type problem struct {
	framework.Parameter
	err error
}

type problems []problem

// asError returns an error whose message lists the first problems, and whose fields list
// more.
func (ps problems) asError() *framework.Error {
	const most, mostFields = 3, 16
	var texts []string
	var fields []framework.Field
	for i, p := range ps[:min(mostFields, len(ps))] {
		fields = append(fields, p.Field(p.err.Error()))
		if i < most {
			texts = append(texts, p.Annotation+": "+p.err.Error())
		}
	}
	if more := len(ps) - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("%d more annotations are invalid", more))
	}
	return framework.Invalid(ps[0].On, strings.Join(texts, "; "), fields...).
		Advise("list devices as in GPU-1,GPU-2 and shares of devices as in GPU-1:0.5")
}

func parseLock(value string) (bool, error) {
	switch value {
	case "true":
		return true, nil
	case "false":
		return false, nil
	default:
		return false, fmt.Errorf("must be true or false, got %q", short(value))
	}
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
				return nil, fmt.Errorf("%q: the share after the last colon must be greater than 0 and at most 1, such as 0.5; an ID that contains colons requires a share, as in 0000:3b:00.0:1", short(id))
			}
			id = id[:colon]
		}
		if !validID(id) {
			return nil, fmt.Errorf("%q: invalid device ID: must be 1 to %d printable ASCII characters without spaces and commas", short(id), maxID)
		}
		if id == "true" || id == "false" {
			return nil, fmt.Errorf("%q: invalid device ID: only the key %s has this value", id, lockKey)
		}
		if _, twice := ids[id]; twice {
			return nil, fmt.Errorf("device %q is listed twice", short(id))
		}
		ids[id] = s
	}
	return ids, nil
}

func validID(id string) bool {
	if id == "" || len(id) > maxID {
		return false
	}
	for _, c := range []byte(id) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return true
}

// short limits invalid input in messages.
func short(text string) string {
	if len(text) <= maxEcho {
		return text
	}
	return strings.ToValidUTF8(text[:maxEcho], "") + "…"
}
