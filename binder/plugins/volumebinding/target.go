// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/storage/volume"
	csitranslation "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/volumes"
)

// target is the node of the bind.
type target struct {
	node *corev1.Node
	// csiNode lists the in-tree plugins that the node has migrated to CSI drivers. It is nil
	// if it does not exist.
	csiNode *storagev1.CSINode
}

// checkAffinity checks that the volume can be used on the node.
func (t target) checkAffinity(pv *corev1.PersistentVolume) error {
	here, err := t.onNode(pv)
	if err != nil {
		return err
	}
	if err := volume.CheckNodeAffinity(here, t.node.Labels); err != nil {
		return framework.Refuse(object(pv), "its node affinity excludes node %s", t.node.Name).Because(err).
			Advise("choose a node that matches the volume's node affinity")
	}
	return nil
}

// onNode returns the volume with the node affinity that applies on the node: that of the CSI
// driver if the volume's in-tree plugin was migrated. It does not change the volume. It follows
// tryTranslatePVToCSI of kube-scheduler's VolumeBinding.
func (t target) onNode(pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	if !volumes.IsMigratable(pv) {
		return pv, nil
	}
	translator := csitranslation.New()
	plugin, err := translator.GetInTreePluginNameFromSpec(pv, nil)
	if err != nil || !volumes.IsMigrated(t.csiNode, plugin) {
		return pv, nil //nolint:nilerr // A volume of an unknown plugin is not translated.
	}
	translated, err := translator.TranslateInTreePVToCSI(klog.Logger{}, pv)
	if err != nil {
		return nil, framework.Refuse(object(pv), "cannot translate the volume of in-tree plugin %s, which node %s migrated to CSI: %v",
			plugin, t.node.Name, err).Because(err).Advise("correct the volume")
	}
	here := *pv
	here.Spec.NodeAffinity = translated.Spec.NodeAffinity
	return &here, nil
}
