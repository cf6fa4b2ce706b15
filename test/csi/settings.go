// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// metadataPrefix is the prefix of the parameters that external-provisioner adds for --extra-create-metadata.
const metadataPrefix = "csi.storage.k8s.io/"

// settings are the parameters of a StorageClass.
type settings struct {
	// delay is the duration of each creation, including failures.
	delay time.Duration
	// failZones are the zones in which each creation fails because the storage is exhausted.
	failZones []string
	// pool is the storage that the class uses. Classes with the same pool share it.
	pool string
	// capacity is the size of the pool in each zone in bytes. If it is nil, the size is unlimited.
	capacity map[string]int64
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
		case "failZones":
			s.failZones = strings.Split(value, ",")
		case "pool":
			s.pool = value
		case "capacity":
			s.capacity, err = parseCapacity(value)
		default:
			if !strings.HasPrefix(key, metadataPrefix) {
				err = errors.New("unknown parameter: use delay, failZones, pool or capacity")
			}
		}
		if err != nil {
			return settings{}, fmt.Errorf("StorageClass parameter %s: %w", key, err)
		}
	}
	if s.delay < 0 {
		return settings{}, fmt.Errorf("StorageClass parameter delay: must not be negative, got %s", s.delay)
	}
	return s, nil
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
