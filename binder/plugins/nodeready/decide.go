// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeready

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	resourcehelper "k8s.io/component-helpers/resource"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	csitranslation "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/volumes"
)

// maxShown is the maximum number of missing things in a message.
const maxShown = 3

// waitingFor returns the wait for everything that the node lacks. The object is that of the first.
func waitingFor(lacks []framework.Wait) framework.Wait {
	var shown []string
	for _, w := range lacks[:min(len(lacks), maxShown)] {
		shown = append(shown, w.For)
	}
	text := strings.Join(shown, ", ")
	if more := len(lacks) - len(shown); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return framework.Wait{Object: lacks[0].Object, For: text}
}

// missing returns what the pod needs and the node lacks, in the order of the checks.
func (p *plugin) missing(f facts) []framework.Wait {
	var all []framework.Wait
	if p.has(checkDrivers) {
		all = append(all, f.missingDrivers()...)
	}
	if p.has(checkLimits) {
		all = append(all, f.missingRoom()...)
	}
	for _, a := range f.agents {
		all = append(all, a.missing(f.node.Name)...)
	}
	if p.has(checkConditions) {
		all = append(all, f.missingConditions(p.conditions)...)
	}
	if p.has(checkResources) {
		all = append(all, f.missingResources()...)
	}
	return all
}

func (f facts) missingDrivers() []framework.Wait {
	var all []framework.Wait
	seen := sets.New[string]()
	for _, v := range f.volumes {
		if registered(f.csiNode, v.driver) != nil || seen.Has(v.driver) {
			continue
		}
		seen.Insert(v.driver)
		wait := framework.Wait{Object: framework.Object{Kind: "CSINode", Name: f.node.Name}, For: "CSI driver " + v.driver + " to register on the node"}
		if v.unknown {
			wait.For += " (no CSIDriver object has this name)"
		}
		all = append(all, wait)
	}
	return all
}

// missingRoom counts the VolumeAttachments and the volumes of the pod. Unlike kube-scheduler's
// NodeVolumeLimits, it does not count volumes of bound pods that have no VolumeAttachment yet, and it
// finds in-tree volumes that were migrated to CSI by their VolumeAttachment.
func (f facts) missingRoom() []framework.Wait {
	attached := sets.New[string]()
	used := map[string]int{}
	for i := range f.attached {
		spec := &f.attached[i].Spec
		used[spec.Attacher]++
		attached.Insert(ptr.Deref(spec.Source.PersistentVolumeName, ""))
	}
	more := map[string]int{}
	for _, v := range f.volumes {
		if v.persistent && (v.volume == "" || !attached.Has(v.volume)) {
			more[v.driver]++
		}
	}
	var all []framework.Wait
	for _, driver := range slices.Sorted(maps.Keys(more)) {
		limit := limitOf(f.csiNode, driver)
		if limit == nil || used[driver]+more[driver] <= int(*limit) {
			continue
		}
		all = append(all, framework.Wait{
			Object: framework.Object{Kind: "CSINode", Name: f.node.Name},
			For: fmt.Sprintf("room on the node for volumes of CSI driver %s (%d more, %d attached, limit %d)",
				driver, more[driver], used[driver], *limit),
		})
	}
	return all
}

// missing returns the DaemonSets without a Ready pod.
func (f agentFacts) missing(node string) []framework.Wait {
	var all []framework.Wait
	for _, ds := range f.daemons {
		ready := slices.ContainsFunc(f.pods, func(pod corev1.Pod) bool { return metav1.IsControlledBy(&pod, ds) && isReady(&pod) })
		if !ready {
			object := framework.Object{Kind: "DaemonSet", Namespace: ds.Namespace, Name: ds.Name}
			all = append(all, framework.Wait{Object: object, For: fmt.Sprintf("the pod of %s on %s to be Ready", object, node)})
		}
	}
	return all
}

func (f facts) missingConditions(expected []condition) []framework.Wait {
	var all []framework.Wait
	for _, want := range expected {
		found := "it is not set"
		i := slices.IndexFunc(f.node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == want.kind })
		if i >= 0 {
			status := f.node.Status.Conditions[i].Status
			if status == want.status {
				continue
			}
			found = fmt.Sprintf("it is %.20q", status)
		}
		all = append(all, framework.Wait{
			Object: framework.Object{Kind: "Node", Name: f.node.Name},
			For:    fmt.Sprintf("the node condition %s to be %s (%s)", want.kind, want.status, found),
		})
	}
	return all
}

// missingResources compares the pod alone with the node: the scheduler has compared the sum of all
// pods. A resource that DRA serves is not in allocatable.
func (f facts) missingResources() []framework.Wait {
	served := sets.New[corev1.ResourceName]()
	if status := f.pod.Status.ExtendedResourceClaimStatus; status != nil {
		for _, mapping := range status.RequestMappings {
			served.Insert(corev1.ResourceName(mapping.ResourceName))
		}
	}
	requests := resourcehelper.PodRequests(f.pod, resourcehelper.PodResourcesOptions{})
	var all []framework.Wait
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		want := requests[name]
		if !isExtended(name) || served.Has(name) {
			continue
		}
		have := f.node.Status.Allocatable[name]
		if have.Cmp(want) >= 0 {
			continue
		}
		all = append(all, framework.Wait{
			Object: framework.Object{Kind: "Node", Name: f.node.Name},
			For:    fmt.Sprintf("extended resource %s on the node (%s requested, %s allocatable)", name, want.String(), have.String()),
		})
	}
	return all
}

// isExtended is IsExtendedResourceName of k8s.io/kubernetes/pkg/apis/core/v1/helper, for names that the
// API server has validated.
func isExtended(name corev1.ResourceName) bool {
	return strings.Contains(string(name), "/") && !strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
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

// limitOf returns the attach limit of the driver on the node, or nil if it has none.
func limitOf(node *storagev1.CSINode, driver string) *int32 {
	if d := registered(node, driver); d != nil && d.Allocatable != nil {
		return d.Allocatable.Count
	}
	return nil
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
	driver, err := csitranslation.New().GetCSINameFromInTreeName(plugin)
	if err != nil {
		return ""
	}
	return driver
}

// isReady returns whether the pod is Ready and is not being deleted.
func isReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// shouldRun returns whether the DaemonSet controller creates a pod on the node. It follows
// NodeShouldRunDaemonPod of k8s.io/kubernetes/pkg/controller/daemon.
func shouldRun(ds *appsv1.DaemonSet, node *corev1.Node) bool {
	template := &ds.Spec.Template.Spec
	if ds.DeletionTimestamp != nil || template.NodeName != "" && template.NodeName != node.Name {
		return false
	}
	// As upstream, an affinity that cannot be parsed does not match.
	if fits, _ := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: *template}).Match(node); !fits {
		return false
	}
	return !slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		return taint.Effect != corev1.TaintEffectPreferNoSchedule && !tolerates(template, &taint)
	})
}

// tolerates returns whether the pods of the DaemonSet tolerate the taint. It includes the tolerations
// of AddOrUpdateDaemonPodTolerations of k8s.io/kubernetes/pkg/controller/daemon/util.
func tolerates(template *corev1.PodSpec, taint *corev1.Taint) bool {
	switch taint.Key {
	case corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable:
		if taint.Effect == corev1.TaintEffectNoExecute {
			return true
		}
	case corev1.TaintNodeDiskPressure, corev1.TaintNodeMemoryPressure, corev1.TaintNodePIDPressure, corev1.TaintNodeUnschedulable:
		if taint.Effect == corev1.TaintEffectNoSchedule {
			return true
		}
	case corev1.TaintNodeNetworkUnavailable:
		if taint.Effect == corev1.TaintEffectNoSchedule && template.HostNetwork {
			return true
		}
	}
	return schedulinghelpers.TolerationsTolerateTaint(klog.Logger{}, template.Tolerations, taint, true)
}
