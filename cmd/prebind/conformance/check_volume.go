// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"github.com/prebind/prebind/binder"
)

const (
	// provisioner is the provisioner of the StorageClasses. The command plays it.
	provisioner = "conformance.prebind.dev"
	// provisionTime is the time from the request for a volume to its creation. It is longer than the time after which Prebind
	// reports a wait.
	provisionTime = 8 * time.Second
	// rollbackTime is the time in which Prebind rolls back the bind of a deleted pod.
	rollbackTime = 30 * time.Second
)

// usesClaim adds the claim to the pod.
func usesClaim(name string) podOption {
	return func(pod *corev1.Pod) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}})
	}
}

// createClaim creates a claim, and a class for it.
func (s *session) createClaim(ctx context.Context, name string) error {
	class := &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: s.ns + "-" + name, Labels: s.labels()},
		Provisioner:       provisioner,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
		ReclaimPolicy:     ptr.To(corev1.PersistentVolumeReclaimRetain),
	}
	if _, err := s.client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating StorageClass %s: %w", class.Name, err)
	}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: name, Labels: s.labels()},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: &class.Name,
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}},
		},
	}
	if _, err := s.client.CoreV1().PersistentVolumeClaims(s.ns).Create(ctx, claim, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating PersistentVolumeClaim %s: %w", name, err)
	}
	return nil
}

// selected waits for the node for which the claim's volume is requested.
func (s *session) selected(ctx context.Context, name string) (claim *corev1.PersistentVolumeClaim, node string, err error) {
	err = s.until(ctx, s.Timeout, func(ctx context.Context) (bool, error) {
		claim, err = s.client.CoreV1().PersistentVolumeClaims(s.ns).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		node = claim.Annotations[volume.AnnSelectedNode]
		return node != "", nil
	})
	if errors.Is(err, errTime) {
		err = &violation{
			what:   fmt.Sprintf("neither the scheduler nor Prebind requested the volume of claim %s within %s", name, s.Timeout),
			advice: "Post the Binding of a pod with unbound claims. Prebind binds them. If your scheduler binds volumes itself, set the annotation " + volume.AnnSelectedNode + ".",
		}
	}
	return claim, node, err
}

// provision creates the volume of the claim on the node, as an external provisioner does. Nothing can mount it.
func (s *session) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim, node string) error {
	n, err := s.node(ctx, node)
	if err != nil {
		return err
	}
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: s.ns + "-" + claim.Name, Labels: s.labels()},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:                   claim.Spec.AccessModes,
			Capacity:                      claim.Spec.Resources.Requests,
			StorageClassName:              *claim.Spec.StorageClassName,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef:                      &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/nonexistent/" + s.ns}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{n.Labels[corev1.LabelHostname]}}},
			}}}},
		},
	}
	if _, err := s.client.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating PersistentVolume %s: %w", pv.Name, err)
	}
	return nil
}

// node returns the node. It lists nodes, so that the run needs no other permission.
func (s *session) node(ctx context.Context, name string) (*corev1.Node, error) {
	list, err := s.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading node %s: %w", name, err)
	case len(list.Items) == 0:
		return nil, &violation{what: "the volume was requested for node " + name + ", which does not exist", advice: "Bind to existing nodes."}
	}
	return &list.Items[0], nil
}

// checkVolume checks that a pod whose volume does not exist yet is bound when the volume is bound, to its node.
func (s *session) checkVolume(ctx context.Context) (string, error) {
	const name = "volume"
	if err := s.createClaim(ctx, name); err != nil {
		return "", err
	}
	pod, err := s.create(ctx, s.pod(name, usesClaim(name)))
	if err != nil {
		return "", err
	}
	claim, node, err := s.selected(ctx, name)
	if err != nil {
		return "", err
	}
	err = s.until(ctx, provisionTime, func(ctx context.Context) (bool, error) { return false, s.stillWaits(ctx, pod) })
	if err != nil && !errors.Is(err, errTime) {
		return "", err
	}
	if err = s.provision(ctx, claim, node); err != nil {
		return "", err
	}
	created := time.Now()
	now, err := s.bound(ctx, pod, s.Timeout, adviceRepeat)
	if err != nil {
		return "", err
	}
	if now.Spec.NodeName != node {
		return "", &violation{what: fmt.Sprintf("the volume is on node %s, but the pod was bound to %s", node, now.Spec.NodeName), advice: adviceStay}
	}
	// The event of the wait can be late, so it is read at the end.
	waited, err := s.waitSightings(ctx, now)
	if err != nil {
		return "", err
	}
	who := "the scheduler waited for the volume itself"
	if len(waited) > 0 {
		who = "Prebind made the bind wait"
	}
	return fmt.Sprintf("bound to %s %s after its volume was created; %s", node, seconds(time.Since(created)), who), nil
}

// checkRollback checks that the deletion of a waiting pod leaves neither a reservation nor an attempt.
func (s *session) checkRollback(ctx context.Context) (string, error) {
	const name = "rollback"
	if err := s.createClaim(ctx, name); err != nil {
		return "", err
	}
	id := s.ns + "-" + name
	pod, err := s.create(ctx, s.pod(name, usesClaim(name), annotation(deviceAnnotation, id)))
	if err != nil {
		return "", err
	}
	_, node, err := s.selected(ctx, name)
	if err != nil {
		return "", err
	}
	// Prebind holds the device while the bind waits for the volume.
	by := "the Binding of the scheduler"
	err = s.until(ctx, provisionTime, func(ctx context.Context) (bool, error) { return s.deviceHeld(ctx, node, id) })
	if errors.Is(err, errTime) {
		// The scheduler waits for the volume itself.
		by = "a Binding of this command, because the scheduler waits for volumes itself"
		if err = s.delete(ctx, pod); err != nil {
			return "", err
		}
		if pod, err = s.create(ctx, s.pod(name, unscheduled, usesClaim(name), annotation(deviceAnnotation, id))); err != nil {
			return "", err
		}
		binding := bindingOf(pod, node, nil)
		// The call ends with an error when the pod is deleted.
		go func() { _ = s.client.CoreV1().Pods(s.ns).Bind(ctx, binding, metav1.CreateOptions{}) }()
		err = s.until(ctx, rollbackTime, func(ctx context.Context) (bool, error) { return s.deviceHeld(ctx, node, id) })
	}
	if errors.Is(err, errTime) {
		return "", &violation{what: "Prebind holds no device while the bind waits for its volume", advice: "Check the log of Prebind. This is not a problem of the scheduler."}
	}
	if err != nil {
		return "", err
	}
	if err = s.delete(ctx, pod); err != nil {
		return "", err
	}
	deleted := time.Now()
	records, err := s.allowed(ctx, "list", permission{resource: "configmaps"})
	if err != nil {
		return "", fmt.Errorf("checking permissions: %w", err)
	}
	err = s.until(ctx, rollbackTime, func(ctx context.Context) (bool, error) {
		held, err := s.deviceHeld(ctx, node, id)
		if held || err != nil || !records {
			return err == nil && !held, err
		}
		left, err := s.recorded(ctx, string(pod.UID))
		return err == nil && !left, err
	})
	if errors.Is(err, errTime) {
		return "", &violation{
			what:   fmt.Sprintf("%s after the deletion of the pod, Prebind still holds its device on node %s", rollbackTime, node),
			advice: "Stop repeating the Binding of a deleted pod. If your scheduler does, check the log of Prebind.",
		}
	}
	if err != nil {
		return "", err
	}
	detail := fmt.Sprintf("the device was free %s after the deletion of the waiting pod (%s)", seconds(time.Since(deleted)), by)
	if !records {
		detail += "; without permission to list ConfigMaps, the records of Prebind were not read"
	}
	return detail, nil
}

// deviceHeld returns whether Prebind would refuse the device on the node.
func (s *session) deviceHeld(ctx context.Context, node, id string) (bool, error) {
	x, err := s.explain(ctx, node, map[string]string{deviceAnnotation: id})
	if err != nil {
		return false, err
	}
	if x == nil {
		return false, errNoExplanation
	}
	return slices.ContainsFunc(x.Plugins, func(p binder.PluginExplanation) bool {
		return p.Name == device && p.Verdict == binder.PluginRefuses
	}), nil
}

// recorded returns whether a record of Prebind contains the pod. Only Prebind's own namespace has records. It reads all
// namespaces, so that the user does not have to name this one.
func (s *session) recorded(ctx context.Context, uid string) (bool, error) {
	list, err := s.client.CoreV1().ConfigMaps(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=prebind"})
	if err != nil {
		return false, fmt.Errorf("listing the records of Prebind: %w", err)
	}
	return slices.ContainsFunc(list.Items, func(m corev1.ConfigMap) bool {
		_, ok := m.Data[uid]
		return ok || strings.Contains(fmt.Sprint(m.Data), uid)
	}), nil
}
