// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cases runs test cases of BindPolicies without a cluster.
package cases

import (
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
)

// Kind of a Test.
var Kind = v1alpha1.GroupVersion.WithKind("BindPolicyTest")

// Test is the content of a file whose name ends in _test.yaml or _test.yml. It is only a file format: the API server
// does not serve the kind.
type Test struct {
	metav1.TypeMeta `json:",inline"`
	// KeyPrefixes are the prefixes of keys that the policies may use in addition to their own, as in
	// --policy-key-prefixes.
	KeyPrefixes []string `json:"keyPrefixes,omitempty"`
	// Objects exist in all cases.
	Objects []map[string]any `json:"objects,omitempty"`
	// Cases are binds and their expected results.
	Cases []Case `json:"cases"`
}

// Case is a bind and its expected results.
type Case struct {
	// Name identifies the case in reports.
	Name string `json:"name"`
	// Objects exist in this case. An object with the kind, namespace and name of an object of the file is merged
	// into it, as a JSON merge patch: lists are replaced, and null removes a field.
	Objects []map[string]any `json:"objects,omitempty"`
	// Pod is the pod of the bind, as NAME or NAMESPACE/NAME. The default is the only Pod without spec.nodeName.
	Pod string `json:"pod,omitempty"`
	// Node is the target of the Binding. The default is the only Node.
	Node string `json:"node,omitempty"`
	// Binding contains the annotations and labels of the Binding.
	Binding Metadata `json:"binding,omitzero"`
	// User posts the Binding. The default is system:kube-scheduler.
	User *authenticationv1.UserInfo `json:"user,omitempty"`
	// DryRun means that the Binding is a dry run.
	DryRun bool `json:"dryRun,omitempty"`
	// Waited is the time since the start of the wait, such as 3m.
	Waited metav1.Duration `json:"waited,omitzero"`
	// Expect are the expected results.
	Expect []Expectation `json:"expect"`
}

// Metadata are annotations and labels.
type Metadata struct {
	Annotations map[string]string `json:"annotations,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
}

// Expectation is the expected result of a policy. Fields that are not set are not compared.
type Expectation struct {
	// Policy is the name of the policy. It may be empty if the directory contains only one.
	Policy string `json:"policy,omitempty"`
	// Verdict is required.
	Verdict policy.Verdict `json:"verdict"`
	// Message is the complete message.
	Message *string `json:"message,omitempty"`
	// MessageContains is a part of the message.
	MessageContains string `json:"messageContains,omitempty"`
	// Rule is the path of the expression that leads to the verdict, such as spec.waitFor[driver].
	Rule *string `json:"rule,omitempty"`
	// Annotations and Labels are all that the pod gets, by complete key.
	Annotations map[string]string `json:"annotations,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	// Tasks are the parameters of all tasks of the policy by their names.
	Tasks map[string]map[string]string `json:"tasks,omitempty"`
	// Waived are the names of the waits that timed out with Allow.
	Waived []string `json:"waived,omitempty"`
}
