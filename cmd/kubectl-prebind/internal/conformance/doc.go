// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package conformance tests a scheduler against the contract in docs/for-schedulers.md, on a running cluster with Prebind.
//
// It creates all objects itself, in namespaces of its own. Of other objects, it changes only labels of nodes and drivers of CSINodes, and
// restores them. The checks observe the scheduler from outside: pods, events and claims.
package conformance
