// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"cmp"
	"net/netip"
	"slices"
)

// victim returns the body to refuse when all bodies together are too large. It selects the source that uses most bytes. Of its
// bodies it prefers those that wait for the peer to those that Prebind processes, and of these the oldest. A source that uses
// little therefore never loses to a source that uses more.
func victim(all []*body) *body {
	total := map[string]int64{}
	for _, b := range all {
		total[b.source] += b.bytes
	}
	return slices.MinFunc(all, func(a, b *body) int {
		return cmp.Or(cmp.Compare(total[b.source], total[a.source]), cmp.Compare(a.phase, b.phase), a.since.Compare(b.since))
	})
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
