// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

// fieldsNominated is the FieldsV1 of a manager that owns the field.
const fieldsNominated = `{"f:status":{"f:nominatedNodeName":{}}}`

// pod returns the pod of the tests, with the nominated node and its owners.
func nominatedPod(node string, owners ...string) *corev1.Pod {
	pod := gen.Pod("web", gen.UID("pod-1"))
	pod.Status.NominatedNodeName = node
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet", Subresource: "status", FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:phase":{}}}`)}}
	for _, owner := range owners {
		pod.ManagedFields = append(pod.ManagedFields, metav1.ManagedFieldsEntry{
			Manager: owner, Subresource: "status", Operation: metav1.ManagedFieldsOperationApply, FieldsV1: metav1.NewFieldsV1(fieldsNominated),
		})
	}
	return pod
}

func TestMayAnnounce(t *testing.T) {
	bound, leaving, other := nominatedPod(""), nominatedPod(""), gen.Pod("web", gen.UID("pod-2"))
	bound.Spec.NodeName = "node-a"
	gen.Terminating()(&leaving.ObjectMeta)
	broken := nominatedPod("node-a")
	broken.ManagedFields = append(broken.ManagedFields, metav1.ManagedFieldsEntry{Manager: managerOf("r1-a"), FieldsV1: metav1.NewFieldsV1("{")}, metav1.ManagedFieldsEntry{Manager: managerOf("r1-b")})
	for name, tc := range map[string]struct {
		reason string
		pod    *corev1.Pod
		want   bool
	}{
		"Empty":      {reason: "no client has set the field", pod: nominatedPod(""), want: true},
		"Scheduler":  {reason: "the scheduler has nominated another node", pod: nominatedPod("node-b", "kube-scheduler")},
		"Same":       {reason: "the scheduler has nominated this node and clears the field itself", pod: nominatedPod("node-a", "kube-scheduler")},
		"Unknown":    {reason: "the owner of the value is unknown", pod: nominatedPod("node-b")},
		"Earlier":    {reason: "the replica of an earlier attempt was killed", pod: nominatedPod("node-a", managerOf("r1-a")), want: true},
		"EarlierFor": {reason: "the scheduler has chosen another node since then", pod: nominatedPod("node-b", managerOf("r1-a"), managerOf("r2-b")), want: true},
		"Shared":     {reason: "another client has set the same value", pod: nominatedPod("node-a", managerOf("r1-a"), "kueue")},
		"Similar":    {reason: "the manager only resembles those of Prebind", pod: nominatedPod("node-a", "prebind")},
		"Broken":     {reason: "invalid entries own nothing", pod: broken},
		"Bound":      {reason: "the bind is over", pod: bound},
		"Leaving":    {reason: "the pod is being deleted", pod: leaving},
		"Gone":       {reason: "the pod was deleted"},
		"Replaced":   {reason: "another pod has the name", pod: other},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, mayAnnounce(tc.pod, "pod-1", "node-a"), tc.reason) })
	}
}

// Users can write managedFields. Only an entry like that of a write of the plugin is one of the plugin.
func TestOwnersOf_ForgedEntries(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(e *metav1.ManagedFieldsEntry)
	}{
		"Update":       {reason: "the plugin applies", change: func(e *metav1.ManagedFieldsEntry) { e.Operation = metav1.ManagedFieldsOperationUpdate }},
		"MainResource": {reason: "the plugin writes the status", change: func(e *metav1.ManagedFieldsEntry) { e.Subresource = "" }},
		"MoreOfStatus": {reason: "the plugin applies no other field", change: func(e *metav1.ManagedFieldsEntry) {
			e.FieldsV1 = metav1.NewFieldsV1(`{"f:status":{"f:nominatedNodeName":{},"f:phase":{}}}`)
		}},
		"Metadata": {reason: "the plugin applies no metadata", change: func(e *metav1.ManagedFieldsEntry) {
			e.FieldsV1 = metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{}},"f:status":{"f:nominatedNodeName":{}}}`)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := nominatedPod("node-a", managerOf("r1-a"))
			tc.change(&pod.ManagedFields[1])
			attempts, foreign := ownersOf(pod)
			assert.Empty(t, attempts, tc.reason)
			assert.True(t, foreign, "the owner is another client")
			assert.Empty(t, marksOf(pod), tc.reason)
			assert.False(t, mayAnnounce(pod, "pod-1", "node-a"), tc.reason)
			owns, _ := owns(pod, "pod-1", "r1-a")
			assert.False(t, owns, tc.reason)
			assert.True(t, isForged(pod, "r1-a"), tc.reason)
		})
	}
}

func TestMarksOf(t *testing.T) {
	pod := nominatedPod("node-a", "kube-scheduler", managerOf("r1-a"))
	mark := framework.Mark{Pod: types.NamespacedName{Namespace: "default", Name: "web"}, PodUID: "pod-1", Node: "node-a", Attempt: "r1-a"}
	assert.Equal(t, []framework.Mark{mark}, marksOf(pod))
	for i := range 50 {
		pod.ManagedFields = append(pod.ManagedFields, nominatedPod("node-a", managerOf(fmt.Sprint(i))).ManagedFields[1])
	}
	assert.Len(t, marksOf(pod), maxMarks, "a tenant cannot add any number of marks")
}

func TestTrim(t *testing.T) {
	pod := nominatedPod("node-a", "kube-scheduler", managerOf("r1-a"))
	pod.ResourceVersion = "7"
	long := `{"f:status":` + strings.Repeat(" ", 5000) + `{"f:nominatedNodeName":{}}}`
	pod.ManagedFields = append(pod.ManagedFields, nominatedPod("node-a", managerOf("r2-b")).ManagedFields[1])
	pod.ManagedFields[3].FieldsV1 = metav1.NewFieldsV1(long)
	before := marksOf(pod)
	kept := trim(pod)
	assert.Equal(t, before, marksOf(kept), "the marks stay")
	assert.Empty(t, kept.Spec.Containers)
	assert.Len(t, kept.ManagedFields, 2)
	assert.Less(t, kept.Size(), 400, "a tenant cannot make the cache large")
	assert.Equal(t, "7", kept.ResourceVersion)
	assert.Equal(t, kept, trim(kept), "an informer can transform an object twice")
}
