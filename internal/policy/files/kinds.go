// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
)

// checkKinds reports kinds of resources that the API server does not serve, as far as the built-in kinds and the
// CustomResourceDefinitions of the files show it.
func (p *Policy) checkKinds(known Schemas) {
	for i, r := range p.Policy.Spec.Resources {
		path, kind := fmt.Sprintf("spec.resources[%d]", i), schema.FromAPIVersionAndKind(r.APIVersion, r.Kind)
		_, isCustom := known[kind]
		problem := KindProblem(kind)
		switch {
		case isCustom || policy.IsBuiltIn(kind):
		case known.hasGroup(kind.Group):
			p.unknown(path, fmt.Sprintf("the given CustomResourceDefinitions of the group %s do not serve %s in version %s; correct apiVersion and kind, or pass the CustomResourceDefinition of this kind",
				kind.Group, kind.Kind, kind.Version))
		case problem != "":
			p.unknown(path, problem)
		default:
			p.Warnings = append(p.Warnings, v1alpha1.ExpressionWarning{FieldRef: path + ".kind", Warning: "kind not known: fields are not checked; pass its CustomResourceDefinition"})
		}
	}
}

// KindProblem returns the reason why Kubernetes has no such kind, or an empty text. Groups that are not built in can
// have any kind.
func KindProblem(kind schema.GroupVersionKind) string {
	if policy.IsBuiltIn(kind) || !scheme.Scheme.IsGroupRegistered(kind.Group) {
		return ""
	}
	return fmt.Sprintf("%s has no kind %s; %s", kind.GroupVersion(), kind.Kind, suggestion(kind))
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

// suggestion returns how to correct an unknown kind: the built-in versions of a kind with this name, or its singular.
func suggestion(kind schema.GroupVersionKind) string {
	for _, name := range []string{kind.Kind, strings.TrimSuffix(kind.Kind, "s")} {
		var versions []string
		for _, version := range scheme.Scheme.PrioritizedVersionsAllGroups() {
			if policy.IsBuiltIn(version.WithKind(name)) {
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
