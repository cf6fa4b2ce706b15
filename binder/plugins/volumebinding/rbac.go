// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

// What this plugin may do. `make generate` turns these markers into the ClusterRole "prebind-volumebinding", which an operator
// leaves out where the plugin is switched off.
//
// Claims and volumes are patched (selected-node, claimRef), never created or deleted: provisioning is the provisioner's.
//
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims;persistentvolumes,verbs=get;list;watch;patch
//
// The class tells whether a claim can be provided on a node at all.
//
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get;list;watch
