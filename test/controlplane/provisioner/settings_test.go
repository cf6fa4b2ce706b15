// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package provisioner

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestWithParameters(t *testing.T) {
	flags := Settings{Delay: time.Minute, Fail: FailReschedule}
	cases := map[string]struct {
		reason     string
		flags      Settings
		parameters map[string]string
		want       Settings
		wantErr    string
	}{
		"none": {
			reason: "the flags hold",
			flags:  flags,
			want:   flags,
		},
		"all": {
			reason: "the parameters win",
			flags:  flags,
			parameters: map[string]string{
				"delay": "15s", "fail": "error", "failNodes": "node-1, node-2", "failTimes": "2", "affinity": "zone",
			},
			want: Settings{Delay: 15 * time.Second, Fail: FailError, FailNodes: []string{"node-1", "node-2"}, FailTimes: 2, Affinity: AffinityZone},
		},
		"when but not how": {
			reason:     "failing is asked for, so it fails",
			flags:      Settings{Fail: FailNone},
			parameters: map[string]string{"failTimes": "1"},
			want:       Settings{Fail: FailError, FailTimes: 1},
		},
		"said not to fail": {
			reason:     "the parameter is explicit",
			flags:      flags,
			parameters: map[string]string{"fail": "none", "failTimes": "1"},
			want:       Settings{Delay: time.Minute, Fail: FailNone, FailTimes: 1},
		},
		"unknown key":      {parameters: map[string]string{"dealy": "1s"}, wantErr: "dealy", reason: "a typing mistake is reported"},
		"bad duration":     {parameters: map[string]string{"delay": "soon"}, wantErr: "delay", reason: "the key is named"},
		"negative delay":   {parameters: map[string]string{"delay": "-1s"}, wantErr: "negative", reason: "time does not run backwards"},
		"bad count":        {parameters: map[string]string{"failTimes": "once"}, wantErr: "failTimes", reason: "the key is named"},
		"negative count":   {parameters: map[string]string{"failTimes": "-1"}, wantErr: "failTimes", reason: "the key is named"},
		"unknown mode":     {parameters: map[string]string{"fail": "badly"}, wantErr: "badly", reason: "the value is named"},
		"unknown affinity": {flags: flags, parameters: map[string]string{"affinity": "rack"}, wantErr: "rack", reason: "the value is named"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := tc.flags.withParameters(tc.parameters)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("want an error about %q, got %v: %s", tc.wantErr, err, tc.reason)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !equal(got, tc.want) {
				t.Errorf("want %+v, got %+v: %s", tc.want, got, tc.reason)
			}
		})
	}
}

func equal(a, b Settings) bool {
	return a.Delay == b.Delay && a.Fail == b.Fail && a.FailTimes == b.FailTimes && a.Affinity == b.Affinity &&
		slices.Equal(a.FailNodes, b.FailNodes)
}

func TestFails(t *testing.T) {
	cases := map[string]struct {
		settings Settings
		node     string
		n        int
		want     bool
	}{
		"never":              {settings: Settings{Fail: FailNone}, node: "a", n: 1, want: false},
		"always":             {settings: Settings{Fail: FailError}, node: "a", n: 9, want: true},
		"this node":          {settings: Settings{Fail: FailError, FailNodes: []string{"a"}}, node: "a", n: 1, want: true},
		"another node":       {settings: Settings{Fail: FailError, FailNodes: []string{"a"}}, node: "b", n: 1, want: false},
		"the first call":     {settings: Settings{Fail: FailError, FailTimes: 1}, node: "a", n: 1, want: true},
		"the second call":    {settings: Settings{Fail: FailError, FailTimes: 1}, node: "a", n: 2, want: false},
		"first, other node":  {settings: Settings{Fail: FailError, FailTimes: 1, FailNodes: []string{"a"}}, node: "b", n: 1, want: false},
		"no node, no filter": {settings: Settings{Fail: FailReschedule}, node: "", n: 1, want: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := tc.settings.fails(tc.node, tc.n); got != tc.want {
				t.Errorf("want %t, got %t", tc.want, got)
			}
		})
	}
}
