// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeready

// Permissions of this plugin. `make generate` writes the ClusterRole "prebind-node-ready" from these
// markers. Operators omit the role if the plugin is off.
//
// Claims, volumes, classes and drivers show which CSI driver a volume needs, and CSINodes where it is
// registered.
//
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims;persistentvolumes,verbs=get;list;watch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=csidrivers;csinodes;storageclasses;volumeattachments,verbs=get;list;watch
//
// DaemonSets show on which nodes an agent runs. Prebind reads only those in the namespaces of agents.
//
// +kubebuilder:rbac:groups=apps,resources=daemonsets,verbs=get;list;watch
//
// The ClusterRole "prebind" grants the lists of pods.
