// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// admitsTopology says whether a class with these allowedTopologies may make a
// volume for a node with these labels: one of the terms has to match, and a
// term matches when the node has one of the values of each of its keys. No
// terms admit every node; a term without expressions admits none. This is
// MatchTopologySelectorTerms, which no public Kubernetes library has.
func admitsTopology(terms []corev1.TopologySelectorTerm, nodeLabels map[string]string) bool {
	if len(terms) == 0 {
		return true
	}
	return slices.ContainsFunc(terms, func(term corev1.TopologySelectorTerm) bool {
		if len(term.MatchLabelExpressions) == 0 {
			return false
		}
		for _, expression := range term.MatchLabelExpressions {
			value, ok := nodeLabels[expression.Key]
			if !ok || !slices.Contains(expression.Values, value) {
				return false
			}
		}
		return true
	})
}
