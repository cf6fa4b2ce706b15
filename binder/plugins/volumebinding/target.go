// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/storage/volume"
	csitranslation "k8s.io/csi-translation-lib"
	"k8s.io/csi-translation-lib/plugins"
	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder/framework"
)

// target is the node that volumes have to be usable on.
type target struct {
	node *corev1.Node
	// csiNode says which in-tree plugins the node has handed over to CSI drivers.
	// It is nil when there is none, and may be when no volume is migratable.
	csiNode *storagev1.CSINode
}

// checkAffinity checks that the volume can be used on the node.
func (t target) checkAffinity(pv *corev1.PersistentVolume) error {
	here, err := t.onNode(pv)
	if err != nil {
		return err
	}
	if err := volume.CheckNodeAffinity(here, t.node.Labels); err != nil {
		return framework.Refuse(object(pv), "its node affinity excludes the node %s", t.node.Name).Because(err).
			Advise("choose a node that the volume's nodeAffinity admits")
	}
	return nil
}

// onNode returns the volume as the node sees it: where the volume's in-tree
// plugin was migrated to a CSI driver, the node affinity is in the driver's
// terms. The volume itself is not changed. It follows tryTranslatePVToCSI of
// kube-scheduler's VolumeBinding.
func (t target) onNode(pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	if !migratable(pv) {
		return pv, nil
	}
	translator := csitranslation.New()
	plugin, err := translator.GetInTreePluginNameFromSpec(pv, nil)
	if err != nil || !t.migrated(plugin) {
		return pv, nil //nolint:nilerr // A volume of no known plugin is as it is.
	}
	translated, err := translator.TranslateInTreePVToCSI(klog.Logger{}, pv)
	if err != nil {
		return nil, framework.Refuse(object(pv), "it is of the in-tree plugin %s, which the node %s leaves to a CSI driver, and cannot be translated: %v",
			plugin, t.node.Name, err).Because(err).Advise("correct the volume")
	}
	here := *pv
	here.Spec.NodeAffinity = translated.Spec.NodeAffinity
	return &here, nil
}

// migratable says whether the volume is of an in-tree plugin that can have been
// migrated to a CSI driver, so that the node's CSINode counts.
func migratable(pv *corev1.PersistentVolume) bool {
	return csitranslation.New().IsPVMigratable(pv)
}

// migrated says whether the node has handed the in-tree plugin over to CSI. The
// plugins are those of isCSIMigrationOnForPlugin of kube-scheduler.
func (t target) migrated(plugin string) bool {
	switch plugin {
	case plugins.AWSEBSInTreePluginName, plugins.AzureDiskInTreePluginName, plugins.CinderInTreePluginName,
		plugins.GCEPDInTreePluginName, plugins.PortworxVolumePluginName:
	default:
		return false
	}
	return t.csiNode != nil && slices.Contains(strings.Split(t.csiNode.Annotations[corev1.MigratedPluginsAnnotationKey], ","), plugin)
}
