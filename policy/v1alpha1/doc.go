// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 defines BindPolicy, with which operators annotate, reject and delay binds in CEL.
// Field names and semantics follow ValidatingAdmissionPolicy and MutatingAdmissionPolicy
// (admissionregistration.k8s.io) where they have the concept.
//
// +kubebuilder:object:generate=true
// +groupName=policy.prebind.dev
package v1alpha1
