// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/resource"
)

// metadataPrefix is the prefix of the parameters that external-provisioner adds for --extra-create-metadata.
const metadataPrefix = "csi.storage.k8s.io/"

// settings are the parameters of a StorageClass.
type settings struct {
	// delay is the duration of each creation, including failures.
	delay time.Duration
	// fail is the code of failures, OK for none.
	fail codes.Code
	// failZones limits failures to volumes in these zones. Empty means all.
	failZones []string
	// failTimes limits failures to the first creations of each volume. 0 means all.
	failTimes int
	// pool is the storage that the class uses. Classes with the same pool share it.
	pool string
	// capacity is the size of the pool in each zone in bytes. If it is nil, the size is unlimited.
	capacity map[string]int64
	// largest is the maximum size of a volume in bytes, 0 if unlimited.
	largest int64
}

// parse reads the parameters of a StorageClass. An unknown parameter is an error, so that a typing mistake in a test is visible in an
// event of the claim.
func parse(parameters map[string]string) (settings, error) {
	s := settings{}
	for key, value := range parameters {
		var err error
		switch key {
		case "delay":
			s.delay, err = time.ParseDuration(value)
		case "fail":
			s.fail, err = parseCode(value)
		case "failZones":
			s.failZones = strings.Split(value, ",")
		case "failTimes":
			s.failTimes, err = strconv.Atoi(value)
		case "pool":
			s.pool = value
		case "capacity":
			s.capacity, err = parseCapacity(value)
		case "maximumVolumeSize":
			s.largest, err = parseBytes(value)
		default:
			if !strings.HasPrefix(key, metadataPrefix) {
				err = errors.New("unknown parameter: use delay, fail, failZones, failTimes, pool, capacity or maximumVolumeSize")
			}
		}
		if err != nil {
			return settings{}, fmt.Errorf("StorageClass parameter %s: %w", key, err)
		}
	}
	if s.delay < 0 || s.failTimes < 0 {
		return settings{}, fmt.Errorf("StorageClass parameters delay and failTimes: must not be negative, got %s and %d", s.delay, s.failTimes)
	}
	return s, nil
}

// parseCode converts none or the name of a gRPC code, such as resource-exhausted.
func parseCode(name string) (codes.Code, error) {
	for code := codes.OK + 1; code <= codes.Unauthenticated; code++ {
		if kebab(code.String()) == name {
			return code, nil
		}
	}
	if name == "none" {
		return codes.OK, nil
	}
	return codes.OK, fmt.Errorf("unknown gRPC code %q: use a name such as resource-exhausted, or none", name)
}

// kebab converts ResourceExhausted to resource-exhausted.
func kebab(name string) string {
	var out strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 {
			out.WriteByte('-')
		}
		out.WriteRune(unicode.ToLower(r))
	}
	return out.String()
}

// parseCapacity converts a list such as zone-a=10Gi,zone-b=1Gi to bytes.
func parseCapacity(value string) (map[string]int64, error) {
	out := map[string]int64{}
	for item := range strings.SplitSeq(value, ",") {
		zone, size, ok := strings.Cut(item, "=")
		if !ok {
			return nil, fmt.Errorf("%q is not ZONE=SIZE", item)
		}
		bytes, err := parseBytes(size)
		if err != nil {
			return nil, err
		}
		out[zone] = bytes
	}
	return out, nil
}

func parseBytes(value string) (int64, error) {
	quantity, err := resource.ParseQuantity(value)
	if err != nil {
		return 0, fmt.Errorf("%q: %w", value, err)
	}
	return quantity.Value(), nil
}

// fails returns whether creation n of a volume, counted from 1, must fail in the zone.
func (s settings) fails(zone string, n int) bool {
	return s.fail != codes.OK &&
		(len(s.failZones) == 0 || slices.Contains(s.failZones, zone)) &&
		(s.failTimes == 0 || n <= s.failTimes)
}
