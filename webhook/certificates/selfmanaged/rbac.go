// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package selfmanaged

// What --self-managed-certs may do: `make generate` turns these markers into the roles "prebind-self-managed-certs". Without
// that flag they should not be given.
//
// The one Secret with the CA. Who creates an object cannot be limited to a name.
//
// +kubebuilder:rbac:groups="",resources=secrets,namespace=prebind-system,resourceNames=prebind-webhook-ca,verbs=get;list;watch;update
// +kubebuilder:rbac:groups="",resources=secrets,namespace=prebind-system,verbs=create
//
// The CAs that the API server trusts are in the webhook configuration.
//
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=prebind,verbs=get;list;watch;patch
