// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package api is the contract between the binder's engine and its PreBind
// plugins. It imports nothing but the Kubernetes API types and apimachinery, so
// that a plugin can be written, and tested, against it alone.
//
// The life of a bind, as a plugin sees it:
//
//	PreFlight   reads only; refuses early, or says that there is nothing to do
//	PreBind     may write and wait; runs after the PreFlight of every plugin
//	PreBindRollBack  undoes what PreBind wrote, when the bind does not happen
//
// Every method answers with an error made by this package (Refuse, Wait, Stale)
// or any other error, which counts as the plugin's own failure.
package framework
