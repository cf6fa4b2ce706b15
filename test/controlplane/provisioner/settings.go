// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package provisioner

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// FailMode says how a provision call ends when it is to fail.
type FailMode string

const (
	// FailNone lets every call succeed.
	FailNone FailMode = "none"
	// FailError is an ordinary error: the library tries again later and the
	// claim keeps its selected node.
	FailError FailMode = "error"
	// FailReschedule gives the claim back to the scheduler: the library removes
	// the selected node from it and leaves it alone.
	FailReschedule FailMode = "reschedule"
)

// Affinity says where a provisioned volume can be reached from.
type Affinity string

const (
	// AffinityAuto is the zone of the selected node, or the node alone when it
	// has no zone.
	AffinityAuto Affinity = ""
	// AffinityHostname is the selected node alone.
	AffinityHostname Affinity = "hostname"
	// AffinityZone is the zone of the selected node, which must have one.
	AffinityZone Affinity = "zone"
	// AffinityNone is every node.
	AffinityNone Affinity = "none"
)

// Settings is how provision calls behave. The flags give the defaults and the
// parameters of a StorageClass win over them.
type Settings struct {
	// Delay is how long each call takes, the failing ones included.
	Delay time.Duration
	// Fail says how the calls chosen by FailNodes and FailTimes end.
	Fail FailMode
	// FailNodes limits failures to claims with one of these selected nodes; empty means all.
	FailNodes []string
	// FailTimes limits failures to the first calls for each claim; 0 means all.
	FailTimes int
	// Affinity decides the node affinity of the volume.
	Affinity Affinity
}

// withParameters returns the settings with a StorageClass's parameters over
// them. An unknown parameter or value is an error, so that a typing mistake in a
// test shows up as an event on the claim and not as another behaviour.
func (s Settings) withParameters(parameters map[string]string) (Settings, error) {
	for key, value := range parameters {
		var err error
		switch key {
		case "delay":
			s.Delay, err = time.ParseDuration(value)
		case "fail":
			s.Fail = FailMode(value)
		case "failNodes":
			s.FailNodes = splitList(value)
		case "failTimes":
			s.FailTimes, err = strconv.Atoi(value)
		case "affinity":
			s.Affinity = Affinity(value)
		default:
			return s, fmt.Errorf("unknown StorageClass parameter %q: use delay, fail, failNodes, failTimes or affinity", key)
		}
		if err != nil {
			return s, fmt.Errorf("StorageClass parameter %s: %w", key, err)
		}
	}
	if _, given := parameters["fail"]; !given && s.Fail == FailNone && (len(s.FailNodes) > 0 || s.FailTimes > 0) {
		s.Fail = FailError // saying when to fail, without saying how
	}
	return s, s.validate()
}

func (s Settings) validate() error {
	if s.Delay < 0 {
		return fmt.Errorf("delay %s is negative: use a duration such as 15s, or 0", s.Delay)
	}
	if s.FailTimes < 0 {
		return fmt.Errorf("failTimes %d is negative: use the number of calls that fail, or 0 for all of them", s.FailTimes)
	}
	if !slices.Contains([]FailMode{FailNone, FailError, FailReschedule}, s.Fail) {
		return fmt.Errorf("unknown fail mode %q: use none, error or reschedule", s.Fail)
	}
	if !slices.Contains([]Affinity{AffinityAuto, AffinityHostname, AffinityZone, AffinityNone}, s.Affinity) {
		return fmt.Errorf("unknown affinity %q: use hostname, zone or none, or leave it out", s.Affinity)
	}
	return nil
}

// fails reports whether call n for the claim, counted from 1, must fail.
func (s Settings) fails(node string, n int) bool {
	if s.Fail == FailNone {
		return false
	}
	if len(s.FailNodes) > 0 && !slices.Contains(s.FailNodes, node) {
		return false
	}
	return s.FailTimes == 0 || n <= s.FailTimes
}

func splitList(value string) []string {
	var out []string
	for item := range strings.SplitSeq(value, ",") {
		if item = strings.TrimSpace(item); item != "" {
			out = append(out, item)
		}
	}
	return out
}
