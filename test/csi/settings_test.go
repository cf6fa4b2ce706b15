// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
)

func TestParse(t *testing.T) {
	const gi = 1 << 30
	tests := map[string]struct {
		reason     string
		parameters map[string]string
		want       settings
		err        string
	}{
		"none": {reason: "a class without parameters succeeds immediately"},
		"all": {
			reason: "each parameter sets its field",
			parameters: map[string]string{
				"delay": "3s", "fail": "resource-exhausted", "failZones": "zone-a,zone-b", "failTimes": "2",
				"pool": "fast", "capacity": "zone-a=1Gi,zone-b=10Gi", "maximumVolumeSize": "5Gi",
			},
			want: settings{
				delay: 3 * time.Second, fail: codes.ResourceExhausted, failZones: []string{"zone-a", "zone-b"}, failTimes: 2,
				pool: "fast", capacity: map[string]int64{"zone-a": gi, "zone-b": 10 * gi}, largest: 5 * gi,
			},
		},
		"metadata": {
			reason:     "external-provisioner adds them to the parameters of the class",
			parameters: map[string]string{"csi.storage.k8s.io/pvc/name": "data"},
		},
		"no failure":    {reason: "a class can state the default", parameters: map[string]string{"fail": "none"}},
		"typing error":  {reason: "a test must not run with other behavior", parameters: map[string]string{"dealy": "3s"}, err: "dealy: unknown parameter"},
		"unknown code":  {reason: "the driver cannot fail with it", parameters: map[string]string{"fail": "full"}, err: `unknown gRPC code "full"`},
		"negative":      {reason: "a delay is not negative", parameters: map[string]string{"delay": "-1s"}, err: "must not be negative"},
		"no zone":       {reason: "a capacity belongs to a zone", parameters: map[string]string{"capacity": "10Gi"}, err: "ZONE=SIZE"},
		"not a size":    {reason: "a capacity is a quantity", parameters: map[string]string{"capacity": "zone-a=much"}, err: `"much"`},
		"not a maximum": {reason: "a maximum is a quantity", parameters: map[string]string{"maximumVolumeSize": "much"}, err: `"much"`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parse(tc.parameters)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("error %v, want %q: %s", err, tc.err, tc.reason)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got %+v, %v, want %+v: %s", got, err, tc.want, tc.reason)
			}
		})
	}
}
