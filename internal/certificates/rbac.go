// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

// Permissions of --self-managed-certs. `make generate` creates the roles "prebind-self-managed-certs" from these markers. Do not
// bind the roles without that flag. Replicas of 0.1, which can run under these roles during an upgrade or a downgrade, also need list and watch.
//
// The Secret with the CA. RBAC cannot limit create to a name.
//
// +kubebuilder:rbac:groups="",resources=secrets,namespace=prebind-system,resourceNames=prebind-webhook-ca,verbs=get;list;watch;update
// +kubebuilder:rbac:groups="",resources=secrets,namespace=prebind-system,verbs=create
//
// The webhook configuration contains the CA bundle.
//
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=prebind,verbs=get;list;watch;patch
