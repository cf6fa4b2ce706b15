// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

// What Prebind itself may do, whichever plugins are on. `make generate` turns these markers into the ClusterRole "prebind";
// each PreBind plugin has markers and a role of its own.
//
// Pods and nodes are only read: the annotations travel in the answer to the API server, which writes them with the bind.
//
// +kubebuilder:rbac:groups="",resources=pods;nodes,verbs=get;list;watch
//
// A pod is told by events what its bind waits for and why it is refused.
//
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
//
// Replicas know of each other by leases, and elect a leader, in Prebind's own namespace.
//
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,namespace=prebind-system,verbs=get;list;create;update;delete
//
// Whether the API server exempts a scheduler's Bindings from its concurrency limits decides how many of its calls are held.
//
// +kubebuilder:rbac:groups=flowcontrol.apiserver.k8s.io,resources=flowschemas,resourceNames=prebind,verbs=get
