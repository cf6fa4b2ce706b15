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
// The class tells whether a claim can be provided on a node at all; the driver and its capacities, whether there is room for it.
//
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses;csidrivers;csistoragecapacities,verbs=get;list;watch
//
// The node's CSINode tells which in-tree volumes it leaves to CSI drivers. It is read only where there are such volumes.
//
// +kubebuilder:rbac:groups=storage.k8s.io,resources=csinodes,verbs=get
//
// For a ReadWriteOncePod claim the pods of its namespace are listed. The ClusterRole "prebind" grants that.
