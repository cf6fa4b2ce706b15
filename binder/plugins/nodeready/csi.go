// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeready

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/storage/volume"
	csitranslation "k8s.io/csi-translation-lib"
	"k8s.io/utils/ptr"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/volumes"
)

// csiVolumes are the volumes of a pod that CSI drivers provide, and the node.
type csiVolumes struct {
	node *corev1.Node
	// csiNode is nil if it does not exist.
	csiNode *storagev1.CSINode
	volumes []csiVolume
}

// csiVolume is a volume of the pod that a CSI driver provides.
type csiVolume struct {
	driver string
	// persistent is false for an inline volume, which is not attached.
	persistent bool
	// volume is the name of the PersistentVolume. It is empty if it does not exist yet.
	volume string
}

// missingVolumes makes the checks of CSI drivers. Its requests are bounded by the volumes of the pod and of the node.
func (p *plugin) missingVolumes(ctx context.Context, cache framework.Reader, bc *framework.BindContext) ([]framework.Wait, error) {
	if !p.has(checkDrivers) && !p.has(checkLimits) {
		return nil, nil
	}
	v, err := readVolumes(ctx, cache, bc.Pod, bc.Node)
	if err != nil {
		return nil, err
	}
	var all []framework.Wait
	if p.has(checkDrivers) {
		if all, err = v.missingDrivers(ctx, cache); err != nil {
			return nil, err
		}
	}
	if p.has(checkLimits) {
		lacks, err := v.missingRoom(ctx, cache)
		return append(all, lacks...), err
	}
	return all, nil
}

// readVolumes reads the CSINode, and the driver of each volume.
func readVolumes(ctx context.Context, cache framework.Reader, pod *corev1.Pod, node *corev1.Node) (csiVolumes, error) {
	all := csiVolumes{node: node}
	var err error
	if all.csiNode, err = framework.Get(ctx, cache, &storagev1.CSINode{}, "", node.Name, volumes.CSINodes); err != nil {
		return all, err
	}
	if all.csiNode != nil && ofEarlierNode(all.csiNode, node) {
		all.csiNode = nil
	}
	for i := range pod.Spec.Volumes {
		if csi := pod.Spec.Volumes[i].CSI; csi != nil {
			all.volumes = append(all.volumes, csiVolume{driver: csi.Driver})
		}
	}
	for _, ref := range volumes.ClaimsOf(pod) {
		v, err := all.volumeOf(ctx, cache, pod.Namespace, ref)
		if err != nil {
			return all, err
		}
		if v.driver != "" {
			all.volumes = append(all.volumes, v)
		}
	}
	return all, nil
}

// ofEarlierNode returns whether the CSINode belongs to an earlier node with the same name: its owner has another UID.
func ofEarlierNode(csiNode *storagev1.CSINode, node *corev1.Node) bool {
	return slices.ContainsFunc(csiNode.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "Node" && o.UID != node.UID })
}

// volumeOf returns the volume of a claim. Its driver is empty if no CSI driver provides it.
func (c *csiVolumes) volumeOf(ctx context.Context, cache framework.Reader, namespace string, ref volumes.ClaimRef) (csiVolume, error) {
	claim, err := framework.Get(ctx, cache, &corev1.PersistentVolumeClaim{}, namespace, ref.Name, volumes.Claims)
	switch {
	case err != nil:
		return csiVolume{}, err
	case claim != nil && claim.Spec.VolumeName != "":
		pv, err := framework.Get(ctx, cache, &corev1.PersistentVolume{}, "", claim.Spec.VolumeName, volumes.Volumes)
		switch {
		case err != nil:
			return csiVolume{}, err
		case pv == nil: // The cache can be behind. The limit of this plugin is for the node.
			return csiVolume{}, framework.NotYet(framework.Object{Kind: "PersistentVolume", Name: claim.Spec.VolumeName}, "the object to exist")
		}
		return csiVolume{driver: driverOf(pv, c.csiNode), persistent: true, volume: pv.Name}, nil
	case claim == nil && ref.Ephemeral == nil:
		return csiVolume{}, framework.NotYet(framework.Object{Kind: "PersistentVolumeClaim", Namespace: namespace, Name: ref.Name}, "the object to exist")
	case claim == nil:
		claim = &corev1.PersistentVolumeClaim{Spec: ref.Ephemeral.Ephemeral.VolumeClaimTemplate.Spec}
	}
	class, err := framework.Get(ctx, cache, &storagev1.StorageClass{}, "", volume.GetPersistentVolumeClaimClass(claim))
	if class == nil {
		return csiVolume{}, err
	}
	return csiVolume{driver: provisionerOf(class, c.csiNode), persistent: true}, nil
}

// missingDrivers returns the drivers that are not registered on the node. The provisioner of an unbound claim counts as a
// driver only if it has a CSIDriver object, because a provisioner does not need a CSI driver.
func (c *csiVolumes) missingDrivers(ctx context.Context, cache framework.Reader) ([]framework.Wait, error) {
	var all []framework.Wait
	seen := sets.New[string]()
	for _, v := range c.volumes {
		if registered(c.csiNode, v.driver) != nil || seen.Has(v.driver) {
			continue
		}
		driver, err := framework.Get(ctx, cache, &storagev1.CSIDriver{}, "", v.driver)
		if err != nil {
			return nil, err
		}
		wait := lack("CSINode", c.node, "CSI driver %s to register on the node", v.driver)
		if driver == nil {
			if v.persistent && v.volume == "" {
				continue
			}
			wait.For += " (no CSIDriver object has this name)"
		}
		seen.Insert(v.driver)
		all = append(all, wait)
	}
	return all, nil
}

// missingRoom counts the VolumeAttachments and the volumes of the pod. Unlike kube-scheduler's
// NodeVolumeLimits, it does not count volumes of bound pods that have no VolumeAttachment yet, and it
// finds in-tree volumes that were migrated to CSI by their VolumeAttachment. As kube-scheduler does, it skips attachments
// without a PersistentVolume: an attachment whose volume was deleted can stay for ever.
func (c *csiVolumes) missingRoom(ctx context.Context, cache framework.Reader) ([]framework.Wait, error) {
	limits := map[string]int{}
	for _, v := range c.volumes {
		if d := registered(c.csiNode, v.driver); v.persistent && d != nil && d.Allocatable != nil && d.Allocatable.Count != nil {
			limits[v.driver] = int(*d.Allocatable.Count)
		}
	}
	if len(limits) == 0 {
		return nil, nil
	}
	var list storagev1.VolumeAttachmentList
	if err := cache.List(ctx, &list, attachments.Where(c.node.Name)); err != nil {
		return nil, framework.FromAPI(framework.Object{Kind: "Node", Name: c.node.Name}, "listing its volume attachments", err)
	}
	used, attached := map[string]int{}, sets.New[string]()
	for i := range list.Items {
		spec := &list.Items[i].Spec
		if _, limited := limits[spec.Attacher]; !limited {
			continue
		}
		pv, err := framework.Get(ctx, cache, &corev1.PersistentVolume{}, "", ptr.Deref(spec.Source.PersistentVolumeName, ""), volumes.Volumes)
		if err != nil {
			return nil, err
		}
		if pv != nil {
			used[spec.Attacher]++
			attached.Insert(pv.Name)
		}
	}
	more := map[string]int{}
	for _, v := range c.volumes {
		if v.persistent && !attached.Has(v.volume) {
			more[v.driver]++
		}
	}
	var all []framework.Wait
	for _, driver := range slices.Sorted(maps.Keys(limits)) {
		if more[driver] > 0 && used[driver]+more[driver] > limits[driver] {
			all = append(all, lack("CSINode", c.node, "room on the node for volumes of CSI driver %s (%d more, %d attached, limit %d)",
				driver, more[driver], used[driver], limits[driver]))
		}
	}
	return all, nil
}

// registered returns the driver of the CSINode, or nil.
func registered(node *storagev1.CSINode, driver string) *storagev1.CSINodeDriver {
	if node == nil {
		return nil
	}
	i := slices.IndexFunc(node.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == driver })
	if i < 0 {
		return nil
	}
	return &node.Spec.Drivers[i]
}

// driverOf returns the CSI driver of the volume, or "".
func driverOf(pv *corev1.PersistentVolume, node *storagev1.CSINode) string {
	if pv.Spec.CSI != nil {
		return pv.Spec.CSI.Driver
	}
	plugin, err := csitranslation.New().GetInTreePluginNameFromSpec(pv, nil)
	if err != nil {
		return "" // The volume is of another kind.
	}
	return migratedDriver(plugin, node)
}

// provisionerOf returns the CSI driver that may provision the volumes of the class.
func provisionerOf(class *storagev1.StorageClass, node *storagev1.CSINode) string {
	if csitranslation.New().IsMigratableIntreePluginByName(class.Provisioner) {
		return migratedDriver(class.Provisioner, node)
	}
	return class.Provisioner
}

// migratedDriver returns the CSI driver that replaces the in-tree plugin on the node, or "". The kubelet
// creates the CSINode with the list of the migrated plugins, so a node without a CSINode is new.
func migratedDriver(plugin string, node *storagev1.CSINode) string {
	if node != nil && !volumes.IsMigrated(node, plugin) {
		return ""
	}
	driver, _ := csitranslation.New().GetCSINameFromInTreeName(plugin) // It is empty if there is none.
	return driver
}
