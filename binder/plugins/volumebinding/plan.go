// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/binder/api"
)

// claimRef is a volume of the pod that stands for a PersistentVolumeClaim.
type claimRef struct {
	name string
	// ephemeral is the pod's volume when the claim is a generic ephemeral one.
	ephemeral *corev1.Volume
}

// claimRefs lists the claims of the pod, each once, in the pod's order.
func claimRefs(pod *corev1.Pod) []claimRef {
	var refs []claimRef
	seen := map[string]bool{}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		ref := claimRef{}
		switch {
		case v.PersistentVolumeClaim != nil:
			ref.name = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			ref.name, ref.ephemeral = ephemeral.VolumeClaimName(pod, v), v
		default:
			continue
		}
		if !seen[ref.name] {
			seen[ref.name] = true
			refs = append(refs, ref)
		}
	}
	return refs
}

// snapshot is all that a decision looks at, as it was read. Objects that do not
// exist are missing from the maps.
type snapshot struct {
	pod  *corev1.Pod
	node *corev1.Node
	// claims by name.
	claims map[string]*corev1.PersistentVolumeClaim
	// volumes by name: those that the claims name.
	volumes map[string]*corev1.PersistentVolume
	// classes by name: those of the unbound claims.
	classes map[string]*storagev1.StorageClass
	// candidates are the volumes of each class, to match unbound claims with.
	candidates map[string][]*corev1.PersistentVolume
}

// plan is what has to be written for a pod's claims on a node.
type plan struct {
	// static are the claims that get a volume that exists.
	static []match
	// dynamic are the claims that get a volume made for them. Those that have
	// selected-node already are among them.
	dynamic []*corev1.PersistentVolumeClaim
}

// match is a claim and the volume found for it.
type match struct {
	claim  *corev1.PersistentVolumeClaim
	volume *corev1.PersistentVolume
}

// done says that every claim is bound.
func (p plan) done() bool { return len(p.static) == 0 && len(p.dynamic) == 0 }

// tell records the intended writes for a dry run.
func (p plan) tell(bc *api.BindContext) {
	for _, m := range p.static {
		if _, changed, err := volume.GetBindVolumeToClaim(m.volume, m.claim); err == nil && changed {
			bc.Intend("%s would set the claimRef of PersistentVolume %s to the claim %s/%s and wait for it to be bound",
				Name, m.volume.Name, m.claim.Namespace, m.claim.Name)
			continue
		}
		bc.Intend("%s would wait for the claim %s/%s to be bound to PersistentVolume %s", Name, m.claim.Namespace, m.claim.Name, m.volume.Name)
	}
	for _, claim := range p.dynamic {
		if claim.Annotations[volume.AnnSelectedNode] == "" {
			bc.Intend("%s would set selected-node of the claim %s/%s to %s and wait for its volume", Name, claim.Namespace, claim.Name, bc.Node.Name)
			continue
		}
		bc.Intend("%s would wait for the volume of the claim %s/%s, whose selected-node is %s", Name, claim.Namespace, claim.Name, bc.Node.Name)
	}
}

// decide makes the plan, or says why the pod cannot have its volumes on this
// node. It follows GetPodVolumeClaims and FindPodVolumes of kube-scheduler's
// VolumeBinding.
func decide(s snapshot) (plan, error) {
	var unbound []*corev1.PersistentVolumeClaim
	for _, ref := range claimRefs(s.pod) {
		claim, err := s.usable(ref)
		if err != nil {
			return plan{}, err
		}
		if isBound(claim) {
			if err := s.checkBound(claim); err != nil {
				return plan{}, err
			}
			continue
		}
		if err := s.checkDelayed(claim); err != nil {
			return plan{}, err
		}
		unbound = append(unbound, claim)
	}
	return s.match(unbound)
}

// usable returns the claim if a pod may use it at all.
func (s snapshot) usable(ref claimRef) (*corev1.PersistentVolumeClaim, error) {
	object := api.Object{Kind: "PersistentVolumeClaim", Namespace: s.pod.Namespace, Name: ref.name}
	claim, ok := s.claims[ref.name]
	switch {
	case !ok && ref.ephemeral != nil:
		return nil, api.Wait(object, "waiting for the ephemeral volume controller to make the claim of the volume %q", ref.ephemeral.Name)
	case !ok:
		return nil, api.Refuse(object, "the claim does not exist").Advise("create it, or correct the pod")
	case ref.ephemeral != nil && ephemeral.VolumeIsForPod(s.pod, claim) != nil:
		return nil, api.Refuse(object, "the claim has the name of the pod's ephemeral volume %q but was not made for this pod", ref.ephemeral.Name).
			Advise("delete or rename whichever is wrong")
	case claim.DeletionTimestamp != nil:
		return nil, api.Refuse(object, "the claim is being deleted").Advise("create it anew once it is gone")
	case claim.Status.Phase == corev1.ClaimLost:
		return nil, api.Refuse(object, "the claim has lost its PersistentVolume %q", claim.Spec.VolumeName).
			Advise("restore the volume, or delete the claim")
	}
	return claim, nil
}

// isBound is isPVCFullyBound of kube-scheduler: the phase may lag behind.
func isBound(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeName != "" && metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted)
}

// checkBound checks that a bound claim's volume can be used on the node.
func (s snapshot) checkBound(claim *corev1.PersistentVolumeClaim) error {
	pv, ok := s.volumes[claim.Spec.VolumeName]
	if !ok {
		return api.Refuse(object(claim), "its PersistentVolume %s does not exist", claim.Spec.VolumeName).
			Advise("restore the volume, or delete the claim")
	}
	if !volume.IsVolumeBoundToClaim(pv, claim) {
		return api.Refuse(object(claim), "its PersistentVolume %s is bound to another claim", pv.Name).
			Advise("correct the claimRef of the volume, or delete the claim")
	}
	return checkAffinity(pv, s.node)
}

func checkAffinity(pv *corev1.PersistentVolume, node *corev1.Node) error {
	if err := volume.CheckNodeAffinity(pv, node.Labels); err != nil {
		return api.Refuse(object(pv), "its node affinity excludes the node %s", node.Name).Because(err).
			Advise("choose a node that the volume's nodeAffinity admits")
	}
	return nil
}

// checkDelayed checks that an unbound claim is one that is bound only for a
// node, and that none or this one was chosen for it.
func (s snapshot) checkDelayed(claim *corev1.PersistentVolumeClaim) error {
	class := s.classes[volume.GetPersistentVolumeClaimClass(claim)]
	delayed := class != nil && class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
	if !delayed || claim.Spec.VolumeName != "" {
		return api.Refuse(object(claim), "the claim is not bound yet, and its binding does not depend on a node").
			Advise("bind the pod when the claim is bound")
	}
	if chosen, ok := claim.Annotations[volume.AnnSelectedNode]; ok && chosen != s.node.Name {
		return api.Refuse(object(claim), "its volume is being made for the node %s", chosen).
			Advise("bind the pod to %s, or delete the claim to begin anew", chosen)
	}
	return nil
}

// match finds a volume for each unbound claim, the smallest claim first, and
// leaves the rest to be provisioned.
func (s snapshot) match(unbound []*corev1.PersistentVolumeClaim) (plan, error) {
	var p plan
	var toMatch []*corev1.PersistentVolumeClaim
	for _, claim := range unbound {
		if _, chosen := claim.Annotations[volume.AnnSelectedNode]; chosen {
			p.dynamic = append(p.dynamic, claim)
		} else {
			toMatch = append(toMatch, claim)
		}
	}
	slices.SortStableFunc(toMatch, bySize)
	taken := map[string]*corev1.PersistentVolume{}
	for _, claim := range toMatch {
		pv, err := volume.FindMatchingVolume(claim, s.candidates[volume.GetPersistentVolumeClaimClass(claim)], s.node, taken, true, true)
		if err != nil {
			return plan{}, api.Refuse(object(claim), "no volume can be matched with it: %v", err).Because(err).Advise("correct the claim")
		}
		if pv == nil {
			p.dynamic = append(p.dynamic, claim)
			continue
		}
		taken[pv.Name] = pv
		p.static = append(p.static, match{claim: claim, volume: pv})
	}
	for _, claim := range p.dynamic {
		if err := s.checkProvision(claim); err != nil {
			return plan{}, err
		}
	}
	return p, nil
}

func bySize(a, b *corev1.PersistentVolumeClaim) int {
	x, y := a.Spec.Resources.Requests[corev1.ResourceStorage], b.Spec.Resources.Requests[corev1.ResourceStorage]
	return cmp.Or(x.Cmp(y), cmp.Compare(a.Name, b.Name))
}

// checkProvision checks that a volume can be made for the claim on the node. It
// follows checkVolumeProvisions of kube-scheduler's VolumeBinding.
func (s snapshot) checkProvision(claim *corev1.PersistentVolumeClaim) error {
	class := s.classes[volume.GetPersistentVolumeClaimClass(claim)]
	switch {
	case class.Provisioner == "" || class.Provisioner == volume.NotSupportedProvisioner:
		return api.Refuse(object(claim), "no volume of its class %s can be used on the node %s, and the class makes none", class.Name, s.node.Name).
			Advise("choose a node with a free volume that fits, or add one")
	case !admitsTopology(class.AllowedTopologies, s.node.Labels):
		return api.Refuse(object(claim), "the allowedTopologies of its class %s exclude the node %s", class.Name, s.node.Name).
			Advise("choose a node that they admit")
	}
	return nil
}

// object names a claim or a volume in errors.
func object(o metav1.Object) api.Object {
	kind := "PersistentVolume"
	if _, ok := o.(*corev1.PersistentVolumeClaim); ok {
		kind = "PersistentVolumeClaim"
	}
	return api.Object{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName()}
}

// describe is for messages that name a claim in the middle of a sentence.
func describe(claim *corev1.PersistentVolumeClaim) string {
	return fmt.Sprintf("the claim %s/%s", claim.Namespace, claim.Name)
}
