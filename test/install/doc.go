// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package install installs Prebind on a control plane of package cluster from
// the very files that it ships, for tests, the demo and benchmarks.
//
// This package does the work of cluster components that do not run here: cert-manager issues the shipped Certificate
// (by cert-manager's own library) and injects the CA; the kubelet runs the
// Deployment's command line, with the service account's token, under the
// shipped roles; the Service leads to replicas that are ready.
package install
