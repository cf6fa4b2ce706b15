// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/prebind/prebind/binder/framework"
)

// Permission is one verb on one resource, in one namespace or in all.
type Permission struct {
	// Group is empty for the core group.
	Group string
	// Resource is the plural, with a subresource behind a slash.
	Resource string
	// Name is empty for all of them.
	Name string
	// Namespace is empty for all of them, and for what is in none.
	Namespace string
	Verb      string
}

// object is what the permission is about, in a message.
func (p Permission) object() string {
	text := p.Resource
	if p.Group != "" {
		text += "." + p.Group
	}
	if p.Name != "" {
		text += " " + p.Name
	}
	if p.Namespace != "" {
		text += " in " + p.Namespace
	}
	return text
}

// allOf lists permissions one by one.
func allOf(p framework.Permissions, namespace string) []Permission {
	return append(permissionsOf(p.Cluster, ""), permissionsOf(p.Own, namespace)...)
}

// permissionsOf takes rules apart.
func permissionsOf(rules []rbacv1.PolicyRule, namespace string) []Permission {
	var all []Permission
	for _, rule := range rules {
		names := rule.ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, name := range names {
					for _, verb := range rule.Verbs {
						all = append(all, Permission{Group: group, Resource: resource, Name: name, Namespace: namespace, Verb: verb})
					}
				}
			}
		}
	}
	return all
}

// grants asks the API server for permissions.
type grants struct{ client kubernetes.Interface }

// check returns an error that names all of the permissions that are not granted, or
// nil. What the API server does not answer counts as granted: the error of what
// comes of it is clearer then.
func (g grants) check(ctx context.Context, all []Permission) error {
	var order []string
	missing := map[string][]string{}
	for _, p := range all {
		resource, sub, _ := strings.Cut(p.Resource, "/")
		review, err := g.client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
				Group: p.Group, Resource: resource, Subresource: sub, Name: p.Name, Namespace: p.Namespace, Verb: p.Verb,
			}},
		}, metav1.CreateOptions{})
		if err != nil || review.Status.Allowed {
			continue
		}
		if !slices.Contains(order, p.object()) {
			order = append(order, p.object())
		}
		missing[p.object()] = append(missing[p.object()], p.Verb)
	}
	if len(order) == 0 {
		return nil
	}
	var parts []string
	for _, object := range order {
		parts = append(parts, strings.Join(missing[object], ", ")+" "+object)
	}
	return fmt.Errorf("the service account of Prebind may not %s", strings.Join(parts, "; "))
}

// needs are the permissions of one part of the program.
type needs struct {
	// of is such as "the PreBind plugin device"; empty for what is always needed.
	of, advice  string
	permissions []Permission
}

// checkAll returns the first part's error, with what to do about it.
func (g grants) checkAll(ctx context.Context, parts []needs) error {
	for _, n := range parts {
		err := g.check(ctx, n.permissions)
		switch {
		case err == nil:
		case n.of == "":
			return fmt.Errorf("%w: apply the manifests of this version, or see that --namespace is the one they are applied to", err)
		default:
			return fmt.Errorf("%s lacks permissions: %w: %s", n.of, err, n.advice)
		}
	}
	return nil
}

// needsOf are the parts of the program that the settings switch on, the core first.
func needsOf(s *settings, namespace string) ([]needs, error) {
	core, err := framework.Shipped("base")
	if err != nil {
		return nil, err
	}
	all := []needs{{permissions: allOf(core, namespace)}}
	add := func(what, name, flag string, permissions func(Arguments) (framework.Permissions, error)) error {
		if permissions == nil {
			return nil
		}
		p, err := permissions(s.argumentsOf(name))
		all = append(all, needs{
			of:          fmt.Sprintf("the %s %s", what, name),
			advice:      fmt.Sprintf("apply its role, or switch it off by --%s=…,-%s", flag, name),
			permissions: allOf(p, namespace),
		})
		return err
	}
	mutators, err := s.selectedMutators()
	if err != nil {
		return nil, err
	}
	for _, m := range mutators {
		if err := add("mutator", m.Name, "mutators", m.Permissions); err != nil {
			return nil, err
		}
	}
	plugins, err := s.selectedPlugins()
	if err != nil {
		return nil, err
	}
	for _, p := range plugins {
		if err := add("PreBind plugin", p.Name, "prebind-plugins", p.Needs); err != nil {
			return nil, err
		}
	}
	return all, nil
}
