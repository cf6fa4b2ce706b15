// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package simulation runs the real engine, plugins and leases of several replicas against an API server in memory, in virtual
// time, with faults, and checks what happens with an oracle that shares no code with the product.
package simulation
