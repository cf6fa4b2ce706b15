// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

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
	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/registration"
	"github.com/prebind/prebind/webhook/certificates"
)

// permission is one verb on one resource.
type permission = authorizationv1.ResourceAttributes

// objectOf describes the object of a permission, without the verb.
func objectOf(p permission) string {
	text := strings.TrimSuffix(p.Resource+"/"+p.Subresource, "/")
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

// permissionsOf returns each permission that the rules grant.
func permissionsOf(p registration.Permissions, namespace string) []permission {
	return append(expand(p.Cluster, ""), expand(p.Own, namespace)...)
}

func expand(rules []rbacv1.PolicyRule, namespace string) []permission {
	var all []permission
	for _, rule := range rules {
		names := rule.ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, group := range rule.APIGroups {
			for _, full := range rule.Resources {
				resource, sub, _ := strings.Cut(full, "/")
				for _, name := range names {
					for _, verb := range rule.Verbs {
						all = append(all, permission{Group: group, Resource: resource, Subresource: sub, Name: name, Namespace: namespace, Verb: verb})
					}
				}
			}
		}
	}
	return all
}

// needs are the permissions that one part of the program needs.
type needs struct {
	// part is the name, such as "PreBind plugin device". remedy is the fix for a missing
	// permission.
	part, remedy string
	permissions  []permission
	// optional means that Prebind omits the part if a permission is missing.
	optional bool
}

// check returns an error with all missing permissions.
func (n needs) check(ctx context.Context, client kubernetes.Interface) error {
	missing := n.missing(ctx, client)
	if missing == "" {
		return nil
	}
	return fmt.Errorf("%s: the service account lacks permissions: %s; %s", n.part, missing, n.remedy)
}

// missing checks each permission with the API server and returns the missing ones, such as
// "list, watch pods". If a check fails, the permission counts as granted, because the error of the
// request that needs it is clearer. The permissions of an optional part then count as missing.
func (n needs) missing(ctx context.Context, client kubernetes.Interface) string {
	var order []string
	missing := map[string][]string{}
	for _, p := range n.permissions {
		review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &p},
		}, metav1.CreateOptions{})
		if err == nil && review.Status.Allowed || err != nil && !n.optional {
			continue
		}
		object := objectOf(p)
		if !slices.Contains(order, object) {
			order = append(order, object)
		}
		missing[object] = append(missing[object], p.Verb)
	}
	for i, object := range order {
		order[i] = strings.Join(missing[object], ", ") + " " + object
	}
	return strings.Join(order, "; ")
}

// CheckPermissions returns an error for the first part of the program that lacks
// permissions for this configuration.
func (a *Assembly) CheckPermissions(ctx context.Context, c *v1alpha1.PrebindConfiguration) error {
	all, err := needsOf(a.o.Registry, c, a.o.Namespace)
	if err != nil {
		return err
	}
	for _, n := range all {
		if err := n.check(ctx, a.o.Client); err != nil {
			return err
		}
	}
	return nil
}

// needsOf returns the needs of the core, and of each mutator and plugin that is on.
func needsOf(r *Registry, c *v1alpha1.PrebindConfiguration, namespace string) ([]needs, error) {
	core, err := framework.Shipped("base")
	if err != nil {
		return nil, err
	}
	all := []needs{{
		part: "Prebind", remedy: "apply the manifests of this version, and check that --namespace is where you applied them",
		permissions: permissionsOf(core, namespace),
	}}
	add := func(kind, name, flag string, toggles []string, permissions func(framework.Arguments) (framework.Permissions, error)) error {
		if permissions == nil {
			return nil
		}
		p, err := permissions(c.Arguments.Of(name))
		off := fmt.Sprintf("switch it off with --%s=…,-%s", flag, name)
		if slices.Contains(toggles, name) {
			off = fmt.Sprintf("remove it from --%s", flag)
		}
		all = append(all, needs{
			part: kind + " " + name, remedy: "apply its role, or " + off,
			permissions: permissionsOf(p, namespace),
		})
		return err
	}
	mutators, err := r.MutatorsOf(c)
	if err != nil {
		return nil, err
	}
	for _, m := range mutators {
		if err := add("mutator", m.Name, "mutators", c.Mutators, m.Permissions); err != nil {
			return nil, err
		}
	}
	plugins, err := r.PluginsOf(c)
	if err != nil {
		return nil, err
	}
	for _, p := range plugins {
		if ifPermitted(p, c) {
			continue
		}
		if err := add("PreBind plugin", p.Name, "prebind-plugins", c.PreBindPlugins, p.Needs); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// ifPermitted returns whether Prebind omits the plugin if a permission is missing.
func ifPermitted(p framework.Registration, c *v1alpha1.PrebindConfiguration) bool {
	return p.IfPermitted && !slices.Contains(c.PreBindPlugins, p.Name)
}

// unpermitted returns the missing permissions of a plugin for which ifPermitted is true, or nil.
func (a *Assembly) unpermitted(ctx context.Context, p framework.Registration, c *v1alpha1.PrebindConfiguration) (missing, err error) {
	if !ifPermitted(p, c) {
		return nil, nil
	}
	needed, err := p.Needs(c.Arguments.Of(p.Name))
	if err != nil {
		return nil, err
	}
	n := needs{part: "PreBind plugin " + p.Name, remedy: "apply its role to use it", optional: true, permissions: permissionsOf(needed, a.o.Namespace)}
	return n.check(ctx, a.o.Client), nil
}

// CheckCertificatePermissions returns an error if self-managed certificates are on and Prebind
// lacks permissions for them. It checks the permissions of the shipped role, with the name of the
// webhook configuration in the options.
func CheckCertificatePermissions(ctx context.Context, client kubernetes.Interface, o certificates.Options, namespace string) error {
	if !o.SelfManaged {
		return nil
	}
	shipped, err := framework.Shipped("certificates/self-managed")
	if err != nil {
		return err
	}
	n := needs{part: "--self-managed-certs", remedy: "apply the component certificates/self-managed", permissions: permissionsOf(shipped, namespace)}
	for i := range n.permissions {
		if n.permissions[i].Resource == "mutatingwebhookconfigurations" {
			n.permissions[i].Name = o.WebhookConfiguration
		}
	}
	return n.check(ctx, client)
}
