// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestGenerate(t *testing.T) {
	cases := map[string]struct {
		reason string
		values string
		want   string
		fails  string
	}{
		"Types": {
			reason: "the default sets the type",
			values: "# -- S.\ns: a\n# -- I.\ni: 1\n# -- B.\nb: true\n# -- L.\nl: []\n",
			want: `{"s":{"type":"string","description":"S."},"i":{"type":"integer","description":"I."},
				"b":{"type":"boolean","description":"B."},"l":{"type":"array","items":{"type":"string"},"description":"L."}}`,
		},
		"Nested": {
			reason: "an unknown key is an error at every level",
			values: "a:\n  # -- B.\n  b: x\n",
			want:   `{"a":{"type":"object","additionalProperties":false,"properties":{"b":{"type":"string","description":"B."}}}}`,
		},
		"Rules": {
			reason: "constraints that the default does not show",
			values: "# @schema {enum: [x, w]}\n# -- A\n# goes on.\na: x\n",
			want:   `{"a":{"type":"string","enum":["x","w"],"description":"A goes on."}}`,
		},
		"Open": {
			reason: "the default of such a value is an example",
			values: "# @schema {additionalProperties: {type: string}}\n# -- A.\na:\n  b: c\n",
			want:   `{"a":{"type":"object","additionalProperties":{"type":"string"},"description":"A."}}`,
		},
		"Configuration": {
			reason: "a mistake in the configuration fails before a replica rejects it, also for plugins that the chart does not know",
			values: "# -- C.\nconfig: {}\n",
			want: `{"config":{"type":"object","description":"C.","additionalProperties":false,
				"properties":{"mode":{"type":"string"},"arguments":{"additionalProperties":true}}}}`,
		},
		"NoDescription": {reason: "each value needs a description", values: "a:\n  b: x\n", fails: "line 2: a.b has no description"},
		"EmptyObject":   {reason: "an empty object needs a description", values: "a: {}\n", fails: "a has no description"},
		"NoType":        {reason: "null has no type", values: "# -- A.\na:\n", fails: "line 2: a: "},
		"BadRule":       {reason: "the constraint is not valid YAML", values: "# @schema {\n# -- A.\na: x\n", fails: "@schema"},
		"TwoDashes":     {reason: "helm-docs would not see the description", values: "# -- A, by --flag.\na: x\n", fails: "two dashes"},
		"NoMapping":     {reason: "values are a map", values: "[]", fails: "must be a map"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			schema, err := generate([]byte(tc.values), []byte(`{"properties":{"mode":{"type":"string"},"arguments":{"additionalProperties":false}}}`))
			if tc.fails != "" {
				require.ErrorContains(t, err, tc.fails, tc.reason)
				return
			}
			require.NoError(t, err, tc.reason)
			global := `"global":{"type":"object","description":"Values that Helm shares between a chart and its subcharts."}`
			want := `{"$schema":"https://json-schema.org/draft-07/schema#","type":"object","additionalProperties":false,"properties":{` + global + `,` + tc.want[1:] + `}`
			assert.JSONEq(t, want, string(schema), tc.reason)
		})
	}
}
