// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package announce is the plugin that publishes the node of a bind that waits, in the field
// status.nominatedNodeName of the pod.
package announce

import (
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/config/v1alpha1"
)

// Name of the plugin.
const Name = "announce"

// The ClusterRole "prebind-announce" has only this permission. It also allows changes to the phase, the addresses and
// the conditions of pods, so the plugin is off by default. The ClusterRole "prebind" grants the watch of pods.
//
// +kubebuilder:rbac:groups="",resources=pods/status,verbs=patch

// Registration returns the plugin's entry in the registry.
func Registration() framework.Registration {
	return framework.Registration{
		Name:        Name,
		Description: "publishes the node of a bind that waits, in status.nominatedNodeName of the pod",
		Arguments:   func() framework.Arguments { return &Arguments{After: metav1.Duration{Duration: 2 * time.Second}} },
		Selections:  func(string, framework.Arguments) []framework.Selection { return []framework.Selection{nominated} },
		New: framework.Build(func(h framework.Handle, a *Arguments) (framework.Plugin, error) {
			return newPlugin(h, a), nil
		}),
	}
}

// Arguments of the plugin.
type Arguments struct {
	// After is how long a bind waits before the plugin publishes its node.
	After metav1.Duration `json:"after"`
}

// AddFlags implements framework.Arguments.
func (a *Arguments) AddFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&a.After.Duration, "announce-after", a.After.Duration,
		"Time for which a bind waits before the plugin announce sets status.nominatedNodeName of the pod.")
}

// Validate implements framework.Arguments.
func (a *Arguments) Validate(path *field.Path) field.ErrorList {
	return v1alpha1.Positive(path.Child("after"), a.After)
}

// nominated contains the pending pods that have a nominatedNodeName, in a reduced form. The cache of
// pending pods lacks managedFields, which name the attempt that set the field.
var nominated = framework.Selection{
	Name:    Name + "/nominated",
	Example: &corev1.Pod{},
	Fields: fields.AndSelectors(
		fields.OneTermEqualSelector("spec.nodeName", ""), fields.OneTermNotEqualSelector("status.nominatedNodeName", "")),
	Transform: framework.Transform(trim),
}

// trim keeps what Marks reads.
func trim(pod *corev1.Pod) *corev1.Pod {
	kept := &corev1.Pod{Spec: corev1.PodSpec{NodeName: pod.Spec.NodeName}, Status: corev1.PodStatus{NominatedNodeName: pod.Status.NominatedNodeName}}
	kept.Namespace, kept.Name, kept.UID, kept.ResourceVersion = pod.Namespace, pod.Name, pod.UID, pod.ResourceVersion
	for _, m := range marksOf(pod) {
		kept.ManagedFields = append(kept.ManagedFields, metav1.ManagedFieldsEntry{
			Manager: managerOf(m.Attempt), Operation: metav1.ManagedFieldsOperationApply, Subresource: "status", FieldsV1: ownsField,
		})
	}
	return kept
}

// ownsField is shared by all pods of the cache, because a tenant can write long entries.
var ownsField = metav1.NewFieldsV1(`{"f:status":{"f:nominatedNodeName":{}}}`)
