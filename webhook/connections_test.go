// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestVictim(t *testing.T) {
	at := func(source string, bytes int64, seconds int64) *connection {
		return &connection{source: source, bytes: bytes, since: time.Unix(seconds, 0)}
	}
	processed := func(c *connection) *connection {
		c.phase = working
		return c
	}
	cases := map[string]struct {
		reason string
		all    []*connection
		want   int
	}{
		"HeaviestSource": {
			reason: "a source that uses little does not lose to one that uses more",
			all:    []*connection{at("api", 2, 1), at("a", 2, 2), at("a", 2, 3)},
			want:   1,
		},
		"ManySmall": {
			reason: "many small bodies of one source count together",
			all:    []*connection{at("api", 5, 1), at("a", 2, 4), at("a", 2, 3), at("a", 2, 5)},
			want:   2,
		},
		"Newcomer": {
			reason: "a new body loses if Prebind processes all others of its source",
			all:    []*connection{processed(at("a", 1, 1)), processed(at("a", 1, 2)), at("a", 1, 3), at("api", 1, 0)},
			want:   2,
		},
		"Idle": {
			reason: "a connection without a body cannot lose one",
			all:    []*connection{at("a", 0, 0), at("a", 2, 1)},
			want:   1,
		},
		"Working": {
			reason: "a body that Prebind processes loses only if its source has no other",
			all:    []*connection{at("api", 1, 0), processed(at("a", 1, 2)), processed(at("a", 1, 1))},
			want:   2,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) { assert.Same(t, tc.all[tc.want], victim(slices.Clone(tc.all)), tc.reason) })
	}
}

func TestSourceOf(t *testing.T) {
	cases := map[string]struct{ reason, remote, want string }{
		"IPv4":      {reason: "the port does not matter", remote: "10.1.2.3:4567", want: "10.1.2.3"},
		"Mapped":    {reason: "a mapped IPv4 address is the same source", remote: "[::ffff:10.1.2.3]:4567", want: "10.1.2.3"},
		"IPv6":      {reason: "a peer can choose the last 64 bits", remote: "[2001:db8:1:2:3:4:5:6]:4567", want: "2001:db8:1:2::/64"},
		"LinkLocal": {reason: "the interface does not matter", remote: "[fe80::1%eth0]:4567", want: "fe80::/64"},
		"Other":     {reason: "an address that cannot be parsed is its own source", remote: "pipe", want: "pipe"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, sourceOf(tc.remote), tc.reason) })
	}
}
