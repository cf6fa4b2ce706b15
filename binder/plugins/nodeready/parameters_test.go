// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeready

import (
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestValidate(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(a *Arguments)
		field  string
		says   string
	}{
		"Defaults": {reason: "the defaults are valid", change: func(*Arguments) {}},
		"Selector": {reason: "the line names the index and the field", change: func(a *Arguments) {
			a.Agents = []Agent{{Namespace: "n", Selector: "a"}, {Namespace: "n", Selector: "a=b,,=c"}}
		}, field: "agents[1].selector", says: `Invalid value: "a=b,,=c": must be a label selector for the pods of the agent`},
		"NodeSelector": {reason: "the line names the field", change: func(a *Arguments) { a.Agents = []Agent{{Namespace: "n", Selector: "a", NodeSelector: "=x"}} }, field: "agents[0].nodeSelector", says: `Invalid value: "=x": must be a label selector`},
		"NoSelector":   {reason: "an empty selector would select all pods", change: func(a *Arguments) { a.Agents = []Agent{{Namespace: "n"}} }, field: "agents[0].selector", says: "must be a label selector for the pods of the agent"},
		"NoNamespace":  {reason: "an agent has a namespace", change: func(a *Arguments) { a.Agents = []Agent{{Selector: "a"}} }, field: "agents[0].namespace", says: "must be the name of a namespace"},
		"Pattern":      {reason: "patterns would not match", change: func(a *Arguments) { a.PassNamespaces = []string{"kube-*"} }, field: "passNamespaces[0]", says: `Invalid value: "kube-*": must be the name of a namespace`},
		"Check":        {reason: "the line lists the checks", change: func(a *Arguments) { a.Checks = []string{"csi"} }, field: "checks[0]", says: `Unsupported value: "csi": supported values: "csi-drivers"`},
		"Condition":    {reason: "a status is one of three", change: func(a *Arguments) { a.Conditions = []string{"Ready", "GPUReady=yes"} }, field: "conditions[1]", says: `must be Type, Type=True, Type=False, or Type=Unknown`},
		"Timeout":      {reason: "a wait takes time", change: func(a *Arguments) { a.Timeout.Duration = 0 }, field: "timeout", says: "Invalid value: \"0s\": must be positive"},
		"MaxTimeout":   {reason: "the maximum includes the default", change: func(a *Arguments) { a.MaxTimeout.Duration = time.Minute }, field: "maxTimeout", says: "Invalid value: \"1m0s\": must be at least timeout (2m0s)"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			a := defaults()
			tc.change(a)
			problems := a.Validate(nil)
			if tc.field == "" {
				assert.Empty(t, problems, tc.reason)
				return
			}
			require.Len(t, problems, 1, tc.reason)
			assert.Equal(t, tc.field, problems[0].Field, tc.reason)
			assert.ErrorContains(t, problems[0], tc.says, tc.reason)
		})
	}
}

func TestAddFlags_Agents(t *testing.T) {
	cases := map[string]struct {
		reason string
		args   []string
		want   []Agent
		says   string
	}{
		"One":          {reason: "the first slash ends the namespace", args: []string{"kube-system/app.kubernetes.io/name=cni"}, want: []Agent{{Namespace: "kube-system", Selector: "app.kubernetes.io/name=cni"}}},
		"Comma":        {reason: "a comma belongs to the selector", args: []string{"n/a=b,c!=d"}, want: []Agent{{Namespace: "n", Selector: "a=b,c!=d"}}},
		"NodeSelector": {reason: "a node selector follows the sign", args: []string{"n/a@pool in (x,y)", "m/b"}, want: []Agent{{Namespace: "n", Selector: "a", NodeSelector: "pool in (x,y)"}, {Namespace: "m", Selector: "b"}}},
		"NoNamespace":  {reason: "the line shows the format", args: []string{"a=b"}, says: `must be NAMESPACE/SELECTOR or NAMESPACE/SELECTOR@NODE-SELECTOR, got "a=b"`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			a := defaults()
			a.Agents = []Agent{{Namespace: "file", Selector: "replaced"}}
			fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
			a.AddFlags(fs)
			var err error
			for _, value := range tc.args {
				err = fs.Set("node-ready-agents", value)
			}
			if tc.says != "" {
				require.ErrorContains(t, err, tc.says, tc.reason)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tc.want, a.Agents, tc.reason)

			b := defaults()
			other := &agentsFlag{list: &b.Agents}
			require.NoError(t, other.Set(fs.Lookup("node-ready-agents").Value.String()))
			assert.Equal(t, a.Agents, b.Agents, "a flag overrides the file")
		})
	}
}
