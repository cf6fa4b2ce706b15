// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"iter"
	"net/netip"
	"time"
)

// usage is one use of a limited resource by one peer.
type usage struct {
	// source is the peer's address; see sourceOf.
	source string
	// weight is the share of the resource that it takes.
	weight int64
	// since is when the peer last made progress.
	since time.Time
	// working is set while Prebind works on it: the peer has done its part.
	working bool
}

// victim returns the key of the usage to end when the resource is exhausted. It
// belongs to the source that uses most, or to one of those that do. Of their usages it
// is one that waits for the peer, if there is any, and the oldest of these. So a source
// that uses little never loses to one that uses more. It returns the zero key for no usage at all.
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

// before reports whether u is to be ended rather than other.
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

// sourceOf returns the part of a peer's address that it cannot choose freely: the
// address of IPv4, and the first 64 bits of IPv6. It returns an address that it cannot
// parse as it is.
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
