// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package framework is everything that a PreBind plugin imports: the contract, the
// context of a bind, errors, waits, and the registration.
//
// Every bind passes through four steps. Each step has one responsibility.
//
//	SetupBindContextExtension  reads what the decision needs, through the reader that it gets
//	PreFlight                  decides, as a pure function: skip, run, or reject
//	PreBind                    writes, and then waits with Await
//	PreBindRollBack            undoes the writes, if the bind does not happen
//
// Only PreBind is required. Confirm, PostBind, Marks and Tidy are optional, one method
// each; so is RequestedBy, which limits the plugin to binds that request it.
//
// # Cached and live reads
//
// The engine calls SetupBindContextExtension and PreFlight with the cached reader. That
// costs no request to the API server. The cache can be behind the state that a scheduler saw, so
// the engine never rejects a bind based on the cache alone: when Setup fails or PreFlight
// rejects, it reads the pod and the node from the API server, repeats Setup with the live
// reader and then PreFlight, and only that result counts. A rejection costs one live read of
// the pod, one of the node, and one of each object that Setup reads. PreFlight requests the
// same for another result by returning Verify.
//
// Await does the same for a wait: it looks at the cache, and checks live before it fails.
// It wakes up when an object changes that the look has read, so that plugins need no
// subscriptions.
//
// # A plugin that waits
//
// A plugin that only waits is one function that reads objects and returns what the bind waits
// for: see NewWaiter. BindContext.WaitAtMost limits the wait.
//
// A plugin that also needs its own PreFlight waits with one line in PreBind, which repeats
// SetupBindContextExtension and PreFlight until PreFlight skips:
//
//	return framework.AwaitReady(ctx, p.h, bc, p)
//
// # Errors
//
// Every method returns an error of this package (Refuse, Wait, Stale, Invalid, FromAPI),
// or any other error, which counts as the plugin's own failure.
package framework
