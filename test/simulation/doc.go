// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package simulation runs the real engine, plugins and leases of several replicas against an API server in memory, in virtual
// time, with faults, and checks what happens with an oracle that shares no code with the product.
//
// A seed decides the random numbers of each actor. It does not decide which goroutine runs first at one instant, nor the choices of select,
// because testing/synctest does not. So a seed that fails can pass the next time. To repeat it, run it several times on one processor:
//
//	GOMAXPROCS=1 go test ./test/simulation -seeds=1 -seed=SEED -count=20
//
// With -v, a seed that passes prints its events, too.
package simulation
