// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package install installs Prebind from the shipped files on a control plane of package cluster. Tests, the demo and benchmarks
// use it.
//
// This package does the work of cluster components that do not run here. Unless cert-manager runs, it issues the shipped
// Certificate and injects the CA. Like the kubelet, it runs the command line of the Deployment with the token of the service account. Like
// kube-proxy, it routes the Service to ready replicas.
package install
