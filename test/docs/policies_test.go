// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const bindPolicyCRD = "../../config/webhook/plugins/policy/crd.yaml"

func TestPoliciesDocument(t *testing.T) {
	var out strings.Builder
	require.NoError(t, writePolicies(&out, bindPolicyCRD))
	committed, err := os.ReadFile(filepath.Join(root, "docs", "policies-reference.md"))
	require.NoError(t, err)
	assert.Equal(t, string(committed), out.String(), "run 'make generate'")
	cases := map[string]struct{ reason, want string }{
		"object":     {reason: "an object has a section, and a link to it", want: "- `mutations` ([object](#specmutations))\n"},
		"list":       {reason: "the items of a list have a section, and a link to it", want: "- `waitFor` ([list of objects](#specwaitfor)): "},
		"required":   {reason: "required fields are marked", want: "Expression returns a bool. False rejects the bind. **Required.** 1 to 8192 characters.\n"},
		"default":    {reason: "the default is the API server's", want: "Default: `2m`."},
		"values":     {reason: "all values are listed", want: "One of `Refuse`, `Allow`."},
		"rule":       {reason: "a rule for a field is in its row", want: "Must be between 1s and 24h.\n"},
		"rules":      {reason: "rules for several fields are below the heading", want: "Rules:\n\n- nameExpression, labelSelector or onNode is required.\n"},
		"scalars":    {reason: "the limits of items are in the row of the list", want: "(list of strings): SchedulerNames selects pods by spec.schedulerName. Empty selects all. At most 64 items. Each item: at most 253 characters."},
		"Kubernetes": {reason: "a type of Kubernetes is not repeated", want: "- `podSelector` ([LabelSelector](https://kubernetes.io/"},
		"same":       {reason: "equal objects are described once", want: "The same as [spec.mutations.annotations[]](#specmutationsannotations)."},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) { assert.Contains(t, out.String(), tc.want, tc.reason) })
	}
}

func TestPoliciesDocument_Errors(t *testing.T) {
	several := filepath.Join(t.TempDir(), "crd.yaml")
	require.NoError(t, os.WriteFile(several, []byte("spec: {versions: [{}, {}]}"), 0o600))
	assert.ErrorContains(t, writePolicies(&strings.Builder{}, several), "must have one version, has 2")
	assert.ErrorIs(t, writePolicies(&strings.Builder{}, several+".missing"), os.ErrNotExist)
}
