// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package gen builds the objects that tests need, with as few words as each of
// them takes: gen.Pod("web", gen.UID("1"), gen.UsesClaim("data")).
//
// An object is as a client would create it, and no more: without options it has
// no UID, resource version or status, so that it fits a fake and a real API
// server alike.
package gen

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// DefaultNamespace is that of every namespaced object without InNamespace.
const DefaultNamespace = "default"

// Meta is an option that fits every kind.
type Meta func(*metav1.ObjectMeta)

var (
	_ PodOption     = Meta(nil)
	_ NodeOption    = Meta(nil)
	_ BindingOption = Meta(nil)
	_ ClaimOption   = Meta(nil)
	_ VolumeOption  = Meta(nil)
	_ ClassOption   = Meta(nil)
)

func (m Meta) applyPod(o *corev1.Pod)                     { m(&o.ObjectMeta) }
func (m Meta) applyNode(o *corev1.Node)                   { m(&o.ObjectMeta) }
func (m Meta) applyBinding(o *corev1.Binding)             { m(&o.ObjectMeta) }
func (m Meta) applyClaim(o *corev1.PersistentVolumeClaim) { m(&o.ObjectMeta) }
func (m Meta) applyVolume(o *corev1.PersistentVolume)     { m(&o.ObjectMeta) }
func (m Meta) applyClass(o *storagev1.StorageClass)       { m(&o.ObjectMeta) }

// InNamespace sets the namespace.
func InNamespace(namespace string) Meta {
	return func(m *metav1.ObjectMeta) { m.Namespace = namespace }
}

// UID sets the UID, as the API server does at creation.
func UID(uid types.UID) Meta { return func(m *metav1.ObjectMeta) { m.UID = uid } }

// Version sets the resource version, as the API server does with every write.
func Version(version string) Meta {
	return func(m *metav1.ObjectMeta) { m.ResourceVersion = version }
}

// Label adds a label.
func Label(key, value string) Meta {
	return func(m *metav1.ObjectMeta) { metav1.SetMetaDataLabel(m, key, value) }
}

// Annotation adds an annotation.
func Annotation(key, value string) Meta {
	return func(m *metav1.ObjectMeta) { metav1.SetMetaDataAnnotation(m, key, value) }
}

// OwnedBy adds a controlling owner.
func OwnedBy(kind, name string, uid types.UID) Meta {
	return func(m *metav1.ObjectMeta) {
		controller := true
		m.OwnerReferences = append(m.OwnerReferences, metav1.OwnerReference{
			APIVersion: "v1", Kind: kind, Name: name, UID: uid, Controller: &controller,
		})
	}
}

// Terminating is an object that is being deleted.
func Terminating() Meta {
	return func(m *metav1.ObjectMeta) {
		since := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
		m.DeletionTimestamp = &since
		m.Finalizers = append(m.Finalizers, "test.prebind.dev/kept")
	}
}
