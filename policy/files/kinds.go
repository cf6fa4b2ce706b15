// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
)

// checkKinds reports kinds of resources that the API server does not serve, as far as the built-in kinds and the
// CustomResourceDefinitions of the files show it.
func (p *Policy) checkKinds(known Schemas) {
	for i := range p.Policy.Spec.Resources {
		r := &p.Policy.Spec.Resources[i]
		path := fmt.Sprintf("spec.resources[%d]", i)
		kind := schema.FromAPIVersionAndKind(r.APIVersion, r.Kind)
		custom, isCustom := known[kind]
		switch {
		case isCustom:
			p.checkScope(path, r, &custom)
		case isBuiltIn(kind):
		case known.hasGroup(kind.Group):
			p.unknown(path, fmt.Sprintf("the given CustomResourceDefinitions of the group %s do not serve %s in version %s; correct apiVersion and kind, or pass the CustomResourceDefinition of this kind",
				kind.Group, kind.Kind, kind.Version))
		default:
			if problem := KindProblem(kind); problem != "" {
				p.unknown(path, problem)
				continue
			}
			p.warn(path+".kind", "kind not known: fields are not checked; pass its CustomResourceDefinition")
		}
	}
}

// KindProblem returns the reason why Kubernetes has no such kind, or an empty text. Groups that are not built in can
// have any kind.
func KindProblem(kind schema.GroupVersionKind) string {
	if isBuiltIn(kind) || !scheme.Scheme.IsGroupRegistered(kind.Group) {
		return ""
	}
	return fmt.Sprintf("%s has no kind %s; %s", kind.GroupVersion(), kind.Kind, suggestion(kind))
}

// checkScope reports selections that match no object.
func (p *Policy) checkScope(path string, r *v1alpha1.Resource, kind *servedKind) {
	switch {
	case !kind.namespaced && r.Namespace != "":
		p.warn(path+".namespace", r.Kind+" is cluster-scoped: no object is in a namespace; remove the field")
	case !kind.namespaced && r.NamespaceExpression != "":
		p.warn(path+".namespaceExpression", r.Kind+" is cluster-scoped: no object is in a namespace; remove the field")
	case kind.namespaced && r.NameExpression != "" && r.Namespace == "" && r.NamespaceExpression == "":
		p.warn(path+".nameExpression", r.Kind+" is namespaced: no object has this name without a namespace; set namespace or namespaceExpression")
	}
	if r.OnNode && !kind.hasNodeName {
		p.warn(path+".onNode", r.Kind+" has no field spec.nodeName: no object is on a node")
	}
}

// hasGroup returns whether a kind is in the group.
func (s Schemas) hasGroup(group string) bool {
	for kind := range s {
		if kind.Group == group {
			return true
		}
	}
	return false
}

// isBuiltIn returns whether the kind is that of built-in objects.
func isBuiltIn(kind schema.GroupVersionKind) bool {
	o, err := scheme.Scheme.New(kind)
	if err != nil {
		return false
	}
	_, ok := o.(client.Object)
	return ok
}

// suggestion returns how to correct an unknown kind: the built-in versions of a kind with this name, or its singular.
func suggestion(kind schema.GroupVersionKind) string {
	for _, name := range []string{kind.Kind, strings.TrimSuffix(kind.Kind, "s")} {
		var versions []string
		for _, version := range scheme.Scheme.PrioritizedVersionsAllGroups() {
			if isBuiltIn(version.WithKind(name)) {
				versions = append(versions, version.String()+" "+name)
			}
		}
		if len(versions) > 0 {
			slices.Sort(versions)
			return "use " + strings.Join(slices.Compact(versions), " or ")
		}
	}
	return "correct apiVersion and kind"
}

func (p *Policy) unknown(field, message string) {
	p.Problems = append(p.Problems, policy.Problem{Reason: v1alpha1.ReasonUnknownKind, Field: field, Message: message})
}

func (p *Policy) warn(field, message string) {
	p.warnings = append(p.warnings, v1alpha1.ExpressionWarning{FieldRef: field, Warning: message})
}
