// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cluster runs a real Kubernetes control plane on this machine: etcd,
// kube-apiserver, kube-controller-manager, kube-scheduler and a provisioner for
// test volumes, each a process of its own, with authentication, RBAC and
// admission on. There are no kubelets: nodes are objects only, so pods get
// scheduled and bound but never run, unless kwok acts as their kubelet
// ([Options.Kwok]).
//
// [Start] starts one. The first time on a machine it builds the binaries from Go
// modules (see [Build]), which takes minutes; later starts take seconds.
// Several control planes can run at once, in one process or in many. Whatever
// this package starts ends with the process that started it, on Linux even on
// kill -9.
//
// [Cluster.Services] stands in for kube-proxy: it lets the API server reach
// webhooks through their Service, as it would in a cluster with nodes.
//
// Tests take the control plane from package clustertest.
package cluster
