// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// uidTime is the time in which the API server applies a new ValidatingAdmissionPolicy.
const uidTime = time.Minute

// checkUID checks that the Binding has the UID of the pod. Prebind adds a missing UID, so it cannot be observed later. The check
// therefore uses a second namespace, which is exempt from Prebind, and a policy that rejects Bindings without a UID there.
func (s *session) checkUID(ctx context.Context) (string, error) {
	ns, err := s.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: s.NamespacePrefix, Labels: mergeLabels(s.labels(), map[string]string{exemptLabel: ""}),
	}}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("creating a namespace: %w", err)
	}
	if err = s.createPolicy(ctx, ns.Name); err != nil {
		return "", err
	}
	in := func(pod *corev1.Pod) { pod.Namespace = ns.Name }
	probe, err := s.create(ctx, s.pod(probeName, in, unscheduled))
	if err != nil {
		return "", err
	}
	// The policy applies when it rejects a Binding without a UID.
	err = s.until(ctx, uidTime, func(ctx context.Context) (bool, error) {
		binding := bindingOf(probe, s.nodes[0].Name, nil)
		binding.UID = ""
		err := s.client.CoreV1().Pods(ns.Name).Bind(ctx, binding, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), s.ns), nil
	})
	if errors.Is(err, errTime) {
		return "", &skip{"within " + uidTime.String() + ", the API server did not apply a ValidatingAdmissionPolicy in a namespace that is exempt from Prebind; check that the label " + exemptLabel + " exempts a namespace"}
	}
	if err != nil {
		return "", err
	}
	// Prebind adds the UID before the policy is evaluated, unless the namespace is exempt.
	pod, err := s.create(ctx, s.pod("uid", in))
	if err != nil {
		return "", err
	}
	if _, err = s.bound(ctx, pod, s.Timeout/2, ""); err == nil {
		return "each Binding has the UID of the pod", nil
	}
	if _, ok := errors.AsType[*violation](err); !ok {
		return "", err
	}
	return "", &violation{
		what:   "the pod was not bound in a namespace where a policy rejects Bindings without a UID",
		advice: "Set metadata.uid of the Binding to the UID of the pod that you scheduled. Use POST pods/NAME/binding: the API server removes the UID on the legacy path POST bindings.",
	}
}

// createPolicy creates a policy that rejects Bindings without a UID in the namespace.
func (s *session) createPolicy(ctx context.Context, namespace string) error {
	api := s.client.AdmissionregistrationV1()
	meta := metav1.ObjectMeta{Name: s.ns + ".conformance.prebind.dev", Labels: s.labels()}
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: meta,
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: ptr.To(admissionregistrationv1.Ignore),
			MatchConstraints: &admissionregistrationv1.MatchResources{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/binding", "bindings"}},
				}}},
			},
			Validations: []admissionregistrationv1.Validation{{
				Expression: "has(object.metadata.uid) && object.metadata.uid != ''",
				Message:    "the Binding has no metadata.uid",
			}},
		},
	}
	if _, err := api.ValidatingAdmissionPolicies().Create(ctx, policy, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating a ValidatingAdmissionPolicy: %w", err)
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: meta,
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: policy.Name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}
	if _, err := api.ValidatingAdmissionPolicyBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating a ValidatingAdmissionPolicyBinding: %w", err)
	}
	return nil
}
