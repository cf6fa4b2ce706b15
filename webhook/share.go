// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"iter"
	"net/netip"
	"time"
)

// usage is the use of a limited resource by one connection or body of a peer.
type usage struct {
	// source is the peer's address; see sourceOf.
	source string
	// weight is the amount of the resource that is used.
	weight int64
	// since is the time at which the peer last made progress.
	since time.Time
	// working is set while Prebind processes the request. The peer cannot end it earlier.
	working bool
}

// victim returns the key of the usage to end when the resource is exhausted. It selects the source that uses most. Of
// its usages it prefers those that wait for the peer, and of these the oldest. A source that uses little therefore never
// loses to a source that uses more. Without usages, victim returns the zero key.
func victim[K any](all iter.Seq2[K, usage]) K {
	total := map[string]int64{}
	for _, u := range all {
		total[u.source] += u.weight
	}
	var key K
	var chosen *usage
	for k, u := range all {
		if chosen == nil || u.before(*chosen, total) {
			key, chosen = k, &u
		}
	}
	return key
}

// before reports whether victim prefers u to other.
func (u usage) before(other usage, total map[string]int64) bool {
	switch mine, others := total[u.source], total[other.source]; {
	case mine != others:
		return mine > others
	case u.working != other.working:
		return !u.working
	default:
		return u.since.Before(other.since)
	}
}

// sourceOf returns the part of an address that a peer cannot choose freely: the IPv4 address, or the first 64 bits of the
// IPv6 address. If it cannot parse an address, it returns the address unchanged.
func sourceOf(remote string) string {
	peer, err := netip.ParseAddrPort(remote)
	if err != nil {
		return remote
	}
	address := peer.Addr().Unmap()
	if address.Is4() {
		return address.String()
	}
	network, err := address.WithZone("").Prefix(64)
	if err != nil {
		return remote
	}
	return network.String()
}
