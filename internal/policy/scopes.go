// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	kinds "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
)

// IsNamespaced returns whether the kind is built in and its objects have a namespace.
func IsNamespaced(kind kinds.GroupVersionKind) bool {
	return IsBuiltIn(kind) && !clusterScoped.Has(kind.GroupKind().String())
}

// clusterScoped contains the built-in kinds without a namespace. All others have one. TestClusterScoped compares it with the clients of Kubernetes,
// which are generated from its API.
var clusterScoped = sets.New(
	"CSIDriver.storage.k8s.io", "CSINode.storage.k8s.io", "CertificateSigningRequest.certificates.k8s.io",
	"ClusterRole.rbac.authorization.k8s.io", "ClusterRoleBinding.rbac.authorization.k8s.io", "ClusterTrustBundle.certificates.k8s.io",
	"ComponentStatus", "DeviceClass.resource.k8s.io", "DeviceTaintRule.resource.k8s.io", "FlowSchema.flowcontrol.apiserver.k8s.io",
	"IPAddress.networking.k8s.io", "IngressClass.networking.k8s.io", "MutatingAdmissionPolicy.admissionregistration.k8s.io",
	"MutatingAdmissionPolicyBinding.admissionregistration.k8s.io", "MutatingWebhookConfiguration.admissionregistration.k8s.io",
	"Namespace", "Node", "PersistentVolume", "PriorityClass.scheduling.k8s.io", "PriorityLevelConfiguration.flowcontrol.apiserver.k8s.io",
	"ResourcePoolStatusRequest.resource.k8s.io", "ResourceSlice.resource.k8s.io", "RuntimeClass.node.k8s.io",
	"SelfSubjectAccessReview.authorization.k8s.io", "SelfSubjectReview.authentication.k8s.io", "SelfSubjectRulesReview.authorization.k8s.io",
	"ServiceCIDR.networking.k8s.io", "StorageClass.storage.k8s.io", "StorageVersion.internal.apiserver.k8s.io",
	"StorageVersionMigration.storagemigration.k8s.io", "SubjectAccessReview.authorization.k8s.io", "TokenReview.authentication.k8s.io",
	"ValidatingAdmissionPolicy.admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io",
	"ValidatingWebhookConfiguration.admissionregistration.k8s.io", "VolumeAttachment.storage.k8s.io", "VolumeAttributesClass.storage.k8s.io",
)
