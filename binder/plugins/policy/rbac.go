// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

// Permissions of this plugin. `make generate` writes the ClusterRole "prebind-policy" from these markers.
// Operators omit the role if the plugin is off.
//
// Every replica reads the policies. The leader writes their status. Replicas of 0.1 start without this plugin if update is missing: they run
// beside others during an upgrade, and after a downgrade until the roles of 0.1 are applied.
//
// +kubebuilder:rbac:groups=policy.prebind.dev,resources=bindpolicies,verbs=get;list;watch
// +kubebuilder:rbac:groups=policy.prebind.dev,resources=bindpolicies/status,verbs=patch;update
//
// Every replica creates, continues and deletes the BindTasks of its binds.
//
// +kubebuilder:rbac:groups=policy.prebind.dev,resources=bindtasks,verbs=get;list;watch;create;patch;delete
//
// Expressions can use the pod's Namespace and claims.
//
// +kubebuilder:rbac:groups="",resources=namespaces;persistentvolumeclaims,verbs=get;list;watch
//
// The leader copies the CA bundle to the webhook configuration for BindPolicies.
//
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=prebind,verbs=get
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingwebhookconfigurations,resourceNames=prebind-policy,verbs=get;patch
//
// The ClusterRole "prebind-policy-resources" grants access to the kinds in spec.resources. Operators extend it.
