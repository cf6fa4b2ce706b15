// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"fmt"

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
		case problem != "":
			p.Problems = append(p.Problems, policy.Problem{Reason: v1alpha1.ReasonUnknownKind, Field: path, Message: problem})
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
	return fmt.Sprintf("%s has no kind %s; correct apiVersion and kind", kind.GroupVersion(), kind.Kind)
}
