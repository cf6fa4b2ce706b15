// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestSourceOf(t *testing.T) {
	cases := map[string]struct{ reason, remote, want string }{
		"IPv4":      {reason: "the port does not matter", remote: "10.1.2.3:4567", want: "10.1.2.3/32"},
		"Mapped":    {reason: "a mapped IPv4 address is the same source", remote: "[::ffff:10.1.2.3]:4567", want: "10.1.2.3/32"},
		"IPv6":      {reason: "a peer can choose the last 64 bits", remote: "[2001:db8:1:2:3:4:5:6]:4567", want: "2001:db8:1:2::/64"},
		"LinkLocal": {reason: "the interface does not matter", remote: "[fe80::1%eth0]:4567", want: "fe80::/64"},
		"Other":     {reason: "addresses that cannot be parsed are one source", remote: "pipe", want: netip.Prefix{}.String()},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, sourceOf(tc.remote).String(), tc.reason) })
	}
}
