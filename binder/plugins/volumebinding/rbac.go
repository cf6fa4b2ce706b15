// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

// Permissions of this plugin. `make generate` writes the ClusterRole "prebind-volumebinding" from
// these markers. Operators omit the role if the plugin is disabled.
//
// The plugin patches claims (selected-node) and volumes (claimRef). It never creates or deletes them.
//
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims;persistentvolumes,verbs=get;list;watch;patch
//
// Classes, drivers, and capacities show whether a volume can be provisioned on the node.
//
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses;csidrivers;csistoragecapacities,verbs=get;list;watch
//
// The node's CSINode lists the in-tree plugins that were migrated to CSI.
//
// +kubebuilder:rbac:groups=storage.k8s.io,resources=csinodes,verbs=get;list;watch
//
// The reservations of ReadWriteOncePod claims are in Prebind's own namespace.
//
// +kubebuilder:rbac:groups="",resources=configmaps,namespace=prebind-system,verbs=get;list;watch;create;update;delete
//
// The ClusterRole "prebind" grants the lists of pods for ReadWriteOncePod claims.
