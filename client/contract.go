// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// WebhookName is the name of Prebind's webhook. The API server begins the message of every denial with it.
const WebhookName = "pods-binding.prebind.dev"

// Keys of annotations of a Binding.
const (
	// RequireAnnotation lists PreBind plugins, separated by commas. Prebind rejects the Binding unless all of them are enabled.
	RequireAnnotation = "binder.prebind.dev/require"
	// TimeoutAnnotation is the budget of the bind as a duration such as 90s.
	TimeoutAnnotation = "binder.prebind.dev/timeout"
	// DeviceAnnotationPrefix, followed by the name of a resource, is the key of a list of devices.
	DeviceAnnotationPrefix = "device.prebind.dev/"
	// NodeLockAnnotation is "true" for a bind that no other bind with the lock may accompany on its node.
	NodeLockAnnotation = DeviceAnnotationPrefix + "node-lock"
)

// Types of the causes in the details of a denial. The API serializes the type of a cause as its reason.
const (
	// CausePlugin is the type of the cause whose message is the name of the plugin that denied the Binding.
	CausePlugin metav1.CauseType = "Plugin"
	// CauseObject is the type of the cause whose message is the object of the denial.
	CauseObject metav1.CauseType = "Object"
	// CauseField is the type of a cause that describes an invalid field.
	CauseField = metav1.CauseTypeFieldValueInvalid
)

// Kind is the meaning of an answer. The values are also those of the audit annotation "decision".
type Kind string

// The kinds.
const (
	// None means that Prebind did not deny the Binding. The error is from the API server, from another webhook, or from the
	// network, or there is no error.
	None Kind = ""
	// Waiting means not yet. Post the same Binding again after Answer.Delay, and keep the node for the pod.
	Waiting Kind = "waiting"
	// Refused means not on this node now. Release the node and schedule the pod again, with backoff. Prefer other nodes, unless
	// an unbound claim of the pod has the annotation volume.kubernetes.io/selected-node: then no other node is accepted.
	Refused Kind = "refused"
	// Stale means that the pod has changed or does not exist. Drop the decision and schedule the pod from its new state. The watch can have
	// reported the change before this answer.
	Stale Kind = "stale"
	// Invalid means that the Binding or the pod has an invalid annotation or label. The same Binding never succeeds. Schedule
	// the pod again when its spec, annotations or labels have changed.
	Invalid Kind = "invalid"
	// Internal means that Prebind or a plugin failed. Release the node and schedule the pod again, with backoff. The node is
	// rarely the cause.
	Internal Kind = "internal"
)
