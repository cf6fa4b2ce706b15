// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// permission is a set of verbs on a resource of the whole cluster.
type permission struct {
	group, resource string
	verbs           []string
}

// basePermissions are those of every run.
func basePermissions() []permission {
	return []permission{
		{resource: "namespaces", verbs: []string{"create", "delete", "get", "list"}},
		{resource: "nodes", verbs: []string{"list", "patch"}},
		{resource: "pods", verbs: []string{"create", "delete", "get", "list"}},
		{resource: "pods/binding", verbs: []string{"create"}},
		{group: "events.k8s.io", resource: "events", verbs: []string{"list"}},
	}
}

// volumePermissions are those of checks with volumes.
func volumePermissions() []permission {
	return []permission{
		{resource: "persistentvolumeclaims", verbs: []string{"create", "get"}},
		{resource: "persistentvolumes", verbs: []string{"create", "delete", "list"}},
		{group: "storage.k8s.io", resource: "storageclasses", verbs: []string{"create", "delete", "list"}},
	}
}

// policyPermissions are those of checks with a ValidatingAdmissionPolicy.
func policyPermissions() []permission {
	return []permission{
		{group: "admissionregistration.k8s.io", resource: "validatingadmissionpolicies", verbs: []string{"create", "delete", "list"}},
		{group: "admissionregistration.k8s.io", resource: "validatingadmissionpolicybindings", verbs: []string{"create", "delete", "list"}},
	}
}

// permitted returns an error with all permissions that the user lacks.
func (s *session) permitted(ctx context.Context, selected []check) error {
	all := basePermissions()
	for _, c := range selected {
		all = append(all, c.needs...)
	}
	var missing []string
	for _, p := range all {
		for _, verb := range p.verbs {
			allowed, err := s.allowed(ctx, verb, p)
			if err != nil {
				return fmt.Errorf("checking permissions: %w", err)
			}
			if text := verb + " " + strings.Trim(p.resource+"."+p.group, "."); !allowed && !slices.Contains(missing, text) {
				missing = append(missing, text)
			}
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("your user lacks permissions: %s; grant the ClusterRole of docs/conformance.md, or select other checks with --run", strings.Join(missing, ", "))
	}
	return nil
}

// allowed returns whether the user has the permission in all namespaces.
func (s *session) allowed(ctx context.Context, verb string, p permission) (bool, error) {
	resource, sub, _ := strings.Cut(p.resource, "/")
	review, err := s.client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: verb, Group: p.group, Resource: resource, Subresource: sub,
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return review.Status.Allowed, nil
}
