// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package client helps schedulers to use Prebind. Request builds the Binding that asks for devices, plugins or a budget. Classify
// returns the meaning of the error with which the API server answers a Binding.
//
// A scheduler works without this package: Prebind uses the Binding API, and its answers are Kubernetes errors. The package saves
// you from copying keys and parsing causes. https://github.com/prebind/prebind/blob/main/docs/for-schedulers.md is the contract.
package client
