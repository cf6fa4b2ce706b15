// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package configuration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestValidate(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(c *PrebindConfiguration)
		// want are the invalid fields.
		want []string
	}{
		"Default": {reason: "the defaults are valid", change: func(*PrebindConfiguration) {}},
		"Budgets": {
			reason: "every budget must be positive", change: func(c *PrebindConfiguration) { c.Budgets = Budgets{MaxPreBindTimeout: metav1.Duration{Duration: -1}} },
			want: []string{"budgets.hold", "budgets.maxHolds", "budgets.prebindTimeout", "budgets.maxPrebindTimeout", "arguments.node-state.maxWait"},
		},
		"Holds":    {reason: "held calls must leave connections free", change: func(c *PrebindConfiguration) { c.Budgets.MaxHolds = 257 }, want: []string{"budgets.maxHolds"}},
		"Mode":     {reason: "the mode is required", change: func(c *PrebindConfiguration) { c.Mode = "" }, want: []string{"mode"}},
		"Toggles":  {reason: "a name must be registered", change: func(c *PrebindConfiguration) { c.Mutators, c.PreBindPlugins = []string{"x"}, []string{"-y"} }, want: []string{"mutators", "prebindPlugins"}},
		"Required": {reason: "a mutator that is off adds nothing", change: func(c *PrebindConfiguration) { c.RequiredMutators = []string{"topology", "node-info"} }, want: []string{"requiredMutators[1]"}},
		"Rules": {
			reason: "a rule must have names and at least one override",
			change: func(c *PrebindConfiguration) {
				c.Namespaces = []NamespaceRule{
					{Names: []string{"team-*"}, Mode: ModeAudit},
					{Mode: "On"},
					{Names: []string{"[", ""}},
					{Names: []string{"a"}, PreBindTimeout: metav1.Duration{Duration: time.Minute}, MaxPreBindTimeout: metav1.Duration{Duration: time.Second}},
					{Names: []string{"a"}, PreBindTimeout: metav1.Duration{Duration: -1}, MaxPreBindTimeout: metav1.Duration{Duration: -1}, RejectAfter: metav1.Duration{Duration: -1}},
					{Names: []string{"a"}, RejectAfter: metav1.Duration{Duration: time.Second}},
				}
			},
			want: []string{
				"namespaces[1].names", "namespaces[1].mode", "namespaces[2]", "namespaces[2].names[0]", "namespaces[2].names[1]", "namespaces[3].maxPrebindTimeout",
				"namespaces[4].prebindTimeout", "namespaces[4].maxPrebindTimeout", "namespaces[4].rejectAfter",
			},
		},
		"Arguments": {
			reason: "arguments are validated for every mutator and plugin, on or off",
			change: func(c *PrebindConfiguration) {
				c.Arguments[0].Arguments = &waiting{Names: []string{""}, MaxWait: metav1.Duration{Duration: time.Hour}}
			},
			want: []string{"arguments.node-state.names[0]", "arguments.node-state.maxWait"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := Default(registered())
			tc.change(c)
			var fields []string
			for _, p := range c.Validate() {
				fields = append(fields, p.Field)
			}
			assert.ElementsMatch(t, tc.want, fields, tc.reason)
		})
	}
}

func TestSelected(t *testing.T) {
	list := []Component{{Name: "a", On: true}, {Name: "b", On: true}, {Name: "c"}}
	cases := map[string]struct {
		reason string
		flag   []string
		want   []string
		// says is part of the error. It is empty for no error.
		says string
	}{
		"Default":      {reason: "'*' selects everything that is on by default", flag: []string{"*"}, want: []string{"a", "b"}},
		"None":         {reason: "an empty list switches everything off"},
		"One":          {reason: "a name selects only that entry", flag: []string{"b"}, want: []string{"b"}},
		"OffByDefault": {reason: "a name selects an entry that is off by default", flag: []string{"c"}, want: []string{"c"}},
		"AllAndMore":   {reason: "'*' and a name can be combined", flag: []string{"*", "c"}, want: []string{"a", "b", "c"}},
		"AllButOne":    {reason: "'-x' overrides '*'", flag: []string{"*", "-a"}, want: []string{"b"}},
		"ListOrder":    {reason: "the order is that of the registration", flag: []string{"c", "b", "a"}, want: []string{"a", "b", "c"}},
		"OnlyOff":      {reason: "without '*' nothing is selected", flag: []string{"-a"}},
		"OnAndOff":     {reason: "an entry cannot be on and off", flag: []string{"a", "-a"}, says: `"a" is switched both on and off`},
		"Unknown":      {reason: "the error lists the known names", flag: []string{"x"}, says: "a, b, c"},
		"MinusStar":    {reason: "'-*' is not supported", flag: []string{"-*"}, says: `"*"`},
		"EmptyName":    {reason: "an empty name is not valid", flag: []string{""}, says: `""`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := selected(list, "thing", tc.flag)
			if tc.says != "" {
				require.ErrorContains(t, err, tc.says, tc.reason)
				return
			}
			require.NoError(t, err, tc.reason)
			assert.Equal(t, tc.want, got, tc.reason)
		})
	}
}
