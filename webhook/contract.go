// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// The constants in this file are the contract with schedulers that read denials; see docs/for-schedulers.md. They are stable.
// The module client contains the same values, and a test in test/golden compares both.

// Name is the name of the webhook in the shipped configuration. The API server begins the message of every denial with it.
const Name = "pods-binding.prebind.dev"

// ReasonStale is the reason of a denial with code 412. The API does not define a reason for this code. A denial because the pod does
// not exist has the code 404 and the reason NotFound.
const ReasonStale metav1.StatusReason = "PreconditionFailed"

// Types of the causes in the details of a denial. Every denial has one CausePlugin, except after a panic. The API serializes the type of a cause as
// its reason.
const (
	// CausePlugin is the type of the cause whose message is the name of the plugin or mutator that denied the Binding, or
	// "binder" for Prebind itself.
	CausePlugin metav1.CauseType = "Plugin"
	// CauseObject is the type of the cause whose message is the object that the denial is about: "Kind namespace/name", or
	// "Kind name" for an object without a namespace. It is missing if the denial is not about an object.
	CauseObject metav1.CauseType = "Object"
	// CauseField is the type of a cause whose field is an invalid field and whose message is the problem. A denial with code
	// 422 can have several.
	CauseField = metav1.CauseTypeFieldValueInvalid
)

// Keys of the audit annotations of a call. The API server prefixes them with the name of the webhook and a slash.
const (
	// AuditKeyDecision has the kind of the decision.
	AuditKeyDecision = "decision"
	// AuditKeyPlugin has the plugin or mutator that denied the Binding, or that would have in audit mode.
	AuditKeyPlugin = "plugin"
	// AuditKeyAudited has the kind of the decision that audit mode did not apply.
	AuditKeyAudited = "audited"
	// AuditKeyAttempt has the attempt that prepared the bind.
	AuditKeyAttempt = "attempt"
	// AuditKeyCalls has the number of calls for the Binding.
	AuditKeyCalls = "calls"
	// AuditKeyWaited has the time since the first of these calls.
	AuditKeyWaited = "waited"
)
