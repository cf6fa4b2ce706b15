// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeready

import (
	"context"
	"slices"
	"sync/atomic"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/volumes"
)

// facts are the objects on which the decision depends. Those of a check that is off are empty.
type facts struct {
	pod  *corev1.Pod
	node *corev1.Node
	// csiNode is nil if it does not exist, or if the pod has no volume of a CSI driver.
	csiNode *storagev1.CSINode
	volumes []csiVolume
	// attached are the VolumeAttachments of the node with a volume that exists and a driver of volumes,
	// if one of these drivers has a limit.
	attached []storagev1.VolumeAttachment
	agents   []agentFacts
}

// csiVolume is a volume of the pod that a CSI driver provides.
type csiVolume struct {
	driver string
	// persistent is false for an inline volume, which is not attached.
	persistent bool
	// volume is the name of the PersistentVolume. It is empty if it does not exist yet.
	volume string
	// unknown means that no CSIDriver object has the name of the driver, and that the driver is not
	// registered on the node.
	unknown bool
}

// agentFacts are the DaemonSets of an agent that should run on the node, and the agent's pods there.
type agentFacts struct {
	daemons []*appsv1.DaemonSet
	pods    []corev1.Pod
}

// agent is a parsed Agent.
type agent struct {
	namespace     string
	podsSelector  labels.Selector
	nodesSelector labels.Selector
	// reported is set when the log says that no DaemonSet matches.
	reported atomic.Bool
}

// read reads the facts that the checks need. Its requests are bounded by the pod's volumes and by the
// number of agents.
func (p *plugin) read(ctx context.Context, reader framework.Reader, bc *framework.BindContext) (facts, error) {
	f := facts{pod: bc.Pod, node: bc.Node}
	if p.has(checkDrivers) || p.has(checkLimits) {
		if err := f.readVolumes(ctx, reader); err != nil {
			return f, err
		}
	}
	if p.has(checkLimits) && slices.ContainsFunc(f.volumes, func(v csiVolume) bool { return limitOf(f.csiNode, v.driver) != nil }) {
		if err := f.readAttached(ctx, reader); err != nil {
			return f, err
		}
	}
	if !p.has(checkAgents) {
		return f, nil
	}
	for _, a := range p.agents {
		seen, err := a.read(ctx, reader, bc.Node)
		if err != nil {
			return f, err
		}
		f.agents = append(f.agents, seen)
	}
	return f, nil
}

// readVolumes reads the volumes of CSI drivers and the CSINode. It reads nothing for a pod without
// such volumes.
func (f *facts) readVolumes(ctx context.Context, reader framework.Reader) error {
	refs := volumes.ClaimsOf(f.pod)
	inline := slices.ContainsFunc(f.pod.Spec.Volumes, func(v corev1.Volume) bool { return v.CSI != nil })
	if len(refs) == 0 && !inline {
		return nil
	}
	var err error
	if f.csiNode, err = framework.Get(ctx, reader, &storagev1.CSINode{}, "", f.node.Name); err != nil {
		return err
	}
	if f.csiNode != nil && ofEarlierNode(f.csiNode, f.node) {
		f.csiNode = nil
	}
	for i := range f.pod.Spec.Volumes {
		if csi := f.pod.Spec.Volumes[i].CSI; csi != nil {
			if err := f.add(ctx, reader, csiVolume{driver: csi.Driver}); err != nil {
				return err
			}
		}
	}
	for _, ref := range refs {
		v, err := f.volumeOf(ctx, reader, ref)
		if err != nil {
			return err
		}
		if err := f.add(ctx, reader, v); err != nil {
			return err
		}
	}
	return nil
}

// ofEarlierNode returns whether the CSINode belongs to an earlier node with the same name: its owner has another UID.
func ofEarlierNode(csiNode *storagev1.CSINode, node *corev1.Node) bool {
	return slices.ContainsFunc(csiNode.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "Node" && o.UID != node.UID })
}

// volumeOf returns the volume of a claim. Its driver is empty if no CSI driver provides it.
func (f *facts) volumeOf(ctx context.Context, reader framework.Reader, ref volumes.ClaimRef) (csiVolume, error) {
	claim, err := framework.Get(ctx, reader, &corev1.PersistentVolumeClaim{}, f.pod.Namespace, ref.Name)
	switch {
	case err != nil:
		return csiVolume{}, err
	case claim != nil && claim.Spec.VolumeName != "":
		pv, err := framework.Get(ctx, reader, &corev1.PersistentVolume{}, "", claim.Spec.VolumeName)
		if pv == nil {
			return csiVolume{}, err
		}
		return csiVolume{driver: driverOf(pv, f.csiNode), persistent: true, volume: pv.Name}, nil
	case claim == nil && ref.Ephemeral == nil:
		return csiVolume{}, nil
	case claim == nil:
		claim = &corev1.PersistentVolumeClaim{Spec: ref.Ephemeral.Ephemeral.VolumeClaimTemplate.Spec}
	}
	class, err := framework.Get(ctx, reader, &storagev1.StorageClass{}, "", volume.GetPersistentVolumeClaimClass(claim))
	if class == nil {
		return csiVolume{}, err
	}
	return csiVolume{driver: provisionerOf(class, f.csiNode), persistent: true}, nil
}

// add adds a volume of a CSI driver. The provisioner of an unbound claim counts as a driver only if it
// has a CSIDriver object, because a provisioner does not need a CSI driver.
func (f *facts) add(ctx context.Context, reader framework.Reader, v csiVolume) error {
	if v.driver == "" {
		return nil
	}
	if registered(f.csiNode, v.driver) == nil {
		driver, err := framework.Get(ctx, reader, &storagev1.CSIDriver{}, "", v.driver)
		if err != nil {
			return err
		}
		if v.unknown = driver == nil; v.unknown && v.persistent && v.volume == "" {
			return nil
		}
	}
	f.volumes = append(f.volumes, v)
	return nil
}

// readAttached lists the attachments of the pod's drivers. It skips those without a PersistentVolume, as
// kube-scheduler does: an attachment whose volume was deleted can stay for ever.
func (f *facts) readAttached(ctx context.Context, reader framework.Reader) error {
	var list storagev1.VolumeAttachmentList
	if err := reader.List(ctx, &list, attachments.Where(f.node.Name)); err != nil {
		return framework.FromAPI(framework.Object{Kind: "Node", Name: f.node.Name}, "listing its volume attachments", err)
	}
	drivers := sets.New[string]()
	for _, v := range f.volumes {
		drivers.Insert(v.driver)
	}
	for _, a := range list.Items {
		if a.Spec.Source.PersistentVolumeName == nil || !drivers.Has(a.Spec.Attacher) {
			continue
		}
		pv, err := framework.Get(ctx, reader, &corev1.PersistentVolume{}, "", *a.Spec.Source.PersistentVolumeName)
		if err != nil {
			return err
		}
		if pv != nil {
			f.attached = append(f.attached, a)
		}
	}
	return nil
}

// read reads the facts of the agent. It logs an agent without a DaemonSet once.
func (a *agent) read(ctx context.Context, reader framework.Reader, node *corev1.Node) (agentFacts, error) {
	var f agentFacts
	if !a.nodesSelector.Matches(labels.Set(node.Labels)) {
		return f, nil
	}
	var daemons appsv1.DaemonSetList
	if err := reader.List(ctx, &daemons, a.daemons().Where(a.namespace)); err != nil {
		return f, framework.FromAPI(framework.Object{Kind: "Namespace", Name: a.namespace}, "listing its DaemonSets", err)
	}
	matching := 0
	for i := range daemons.Items {
		ds := &daemons.Items[i]
		if !a.podsSelector.Matches(labels.Set(ds.Spec.Template.Labels)) {
			continue
		}
		matching++
		if shouldRun(ds, node) {
			f.daemons = append(f.daemons, ds)
		}
	}
	if matching == 0 && a.reported.CompareAndSwap(false, true) {
		klog.InfoS("No bind waits for an agent of node-ready: no DaemonSet of its namespace creates pods that match the selector",
			"namespace", a.namespace, "selector", a.podsSelector.String())
	}
	if len(f.daemons) == 0 {
		return f, nil
	}
	var pods corev1.PodList
	if err := reader.List(ctx, &pods, a.pods().Where(node.Name)); err != nil {
		return f, framework.FromAPI(framework.Object{Kind: "Node", Name: node.Name}, "listing its agents", err)
	}
	f.pods = pods.Items
	return f, nil
}
