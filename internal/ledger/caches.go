// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The components of Prebind's plugins.
const (
	// Devices are the records of the plugin device, by node.
	Devices = "prebind-device-record"
	// Claims are the records of the plugin volumebinding, by ReadWriteOncePod claim.
	Claims = "prebind-claim-record"
)

// Caches restricts the cache to the records in the namespace. All plugins with a Store register it as
// Registration.Caches, so that they share one cache.
func Caches(namespace string) map[client.Object]cache.ByObject {
	records, err := labels.NewRequirement(Label, selection.In, []string{Devices, Claims})
	if err != nil {
		panic(err) // The label and its values are constants.
	}
	return map[client.Object]cache.ByObject{&corev1.ConfigMap{}: {
		Namespaces: map[string]cache.Config{namespace: {LabelSelector: labels.NewSelector().Add(*records)}},
		Transform:  cache.TransformStripManagedFields(),
	}}
}
