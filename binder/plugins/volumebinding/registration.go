// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/ledger"
	"github.com/prebind/prebind/internal/volumes"
)

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

// Registration returns the plugin's entry in the registry.
func Registration() framework.Registration {
	free := NewFreeVolumes()
	return framework.Registration{
		Name:        Name,
		On:          true,
		Description: "binds and waits for the pod's PersistentVolumeClaims",
		Watches:     []client.Object{&storagev1.StorageClass{}, &storagev1.CSIDriver{}},
		Selections: func(namespace string, _ framework.Arguments) []framework.Selection {
			withFree := volumes.Volumes
			withFree.Handler = free
			return []framework.Selection{volumes.Claims, withFree, volumes.CSINodes, capacities, ledger.Records(component, namespace, podOf)}
		},
		New: func(h framework.Handle, _ framework.Arguments) (framework.Plugin, error) {
			return New(h, free), nil
		},
	}
}

// capacities contains the CSIStorageCapacities by class.
var capacities = framework.Selection{Name: Name + "/capacities", Example: &storagev1.CSIStorageCapacity{}, Value: func(o client.Object) string {
	if c, ok := o.(*storagev1.CSIStorageCapacity); ok {
		return c.StorageClassName
	}
	return ""
}}
