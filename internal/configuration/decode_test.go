// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package configuration

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/mutators"
)

// inner is a struct inside arguments.
type inner struct {
	Enabled bool `json:"enabled"`
}

// waiting are arguments of a plugin.
type waiting struct {
	MaxWait metav1.Duration `json:"maxWait"`
	Names   []string        `json:"names"`
	Inner   *inner          `json:"inner,omitempty"`
	Seconds uint16          `json:"seconds"`
	hidden  bool
}

func (w *waiting) AddFlags(fs *pflag.FlagSet) {
	w.hidden = true
	fs.DurationVar(&w.MaxWait.Duration, "node-state-max-wait", w.MaxWait.Duration, "How long.")
}

func (w *waiting) Validate(path *field.Path) field.ErrorList {
	return valid(len(w.Names) == 0 || w.Names[0] != "", path.Child("names").Index(0), "", "must not be empty")
}

func (w *waiting) LongestWait() (string, metav1.Duration) { return "maxWait", w.MaxWait }

// registered returns mutators and plugins for tests.
func registered() *Registry {
	return &Registry{
		Mutators: []mutators.Registration{{Name: "topology", On: true}, {Name: "node-info"}},
		Plugins: []framework.Registration{
			{Name: "node-state", On: true, Arguments: func() v1alpha1.Arguments { return &waiting{MaxWait: metav1.Duration{Duration: time.Minute}} }},
			{Name: "device", On: true},
		},
	}
}

const head = "apiVersion: config.prebind.dev/v1alpha1\nkind: PrebindConfiguration\n"

func TestDecode(t *testing.T) {
	minute := metav1.Duration{Duration: time.Minute}
	want := Default(registered())
	want.Mode = ModeAudit
	want.Mutators = []string{"topology"}
	want.Budgets.MaxHolds = 3
	want.Budgets.PreBindTimeout = metav1.Duration{Duration: 90 * time.Second}
	want.Namespaces = []NamespaceRule{{Names: []string{"on"}, Mode: ModeOff}, {Names: []string{}, Mode: ModeOff, PreBindTimeout: minute}}
	want.Arguments[0].Arguments = &waiting{MaxWait: minute, Names: []string{"x"}, Seconds: 7, Inner: &inner{Enabled: true}}
	c := Default(registered())
	err := c.decode([]byte("# a comment\n---\n" + head + `mode: Audit
mutators: [topology]
prebindPlugins:
budgets:
  maxHolds: 3
  prebindTimeout: 1m30s
namespaces:
- {names: [on], mode: Off}
- {names: [], mode: false, prebindTimeout: 1m}
arguments:
  node-state: {names: [x], seconds: 7, maxWait: null, inner: &inner {enabled: true}}
`))
	require.NoError(t, err)
	want.registry, c.registry = nil, nil
	for _, a := range c.Arguments {
		assert.Equal(t, want.Arguments.Of(a.Name), a.Arguments)
	}
	assert.Equal(t, want, c, "fields that are not in the file or null are kept, and lists are replaced")
}

func TestDecode_Errors(t *testing.T) {
	const version = `must be kind PrebindConfiguration of apiVersion config.prebind.dev/v1alpha1, got kind `
	cases := map[string]struct {
		reason, content string
		want            []string
	}{
		"Empty":       {reason: "an empty file is not a configuration", want: []string{version + `"" of apiVersion ""`}},
		"InvalidYAML": {reason: "the error has the line", content: head + "budgets:\n\thold: 1s\n", want: []string{"invalid YAML: yaml: line 4: found character that cannot start any token"}},
		"Documents":   {reason: "the second document would be lost", content: head + "---\n" + head, want: []string{"must have one document, has more"}},
		"Cycle":       {reason: "an alias that contains itself is an error", content: head + "mutators: &a [*a]\n", want: []string{`invalid YAML: yaml: anchor 'a' value contains itself`}},
		"Unknown": {
			reason:  "all unknown fields are reported together",
			content: head + "budgets: {hodl: 1s}\nnamespaces:\n- {moed: x}\narguments:\n  device: {}\n  node-state: {hidden: true, inner: {enable: true}}\n",
			want: []string{
				`unknown field "budgets.hodl"`, `unknown field "namespaces[0].moed"`,
				`unknown field "arguments.device"`, `unknown field "arguments.node-state.hidden"`, `unknown field "arguments.node-state.inner.enable"`,
			},
		},
		"Types": {
			reason: "all values of a wrong type are reported together, with their fields", content: head + `mode: 3
mutators: all
budgets: {maxHolds: many, hold: 5, prebindTimeout: "90", maxPrebindTimeout: {m: 1}}
namespaces:
- {names: [x], prebindTimeout: 1m}
- {names: [y, 7], maxPrebindTimeout: 1 hour}
arguments:
  node-state: {maxWait: 10, seconds: 70000, inner: {enabled: maybe}}
`,
			want: []string{
				`mode: Invalid value: 3: must be of type string (a duration needs a unit, such as 90s)`,
				`mutators: Invalid value: "all": must be of type []string (a duration needs a unit, such as 90s)`,
				`budgets.maxHolds: Invalid value: "many": must be of type int (a duration needs a unit, such as 90s)`,
				`budgets.hold: Invalid value: 5: must be of type string (a duration needs a unit, such as 90s)`,
				`budgets.prebindTimeout: Invalid value: "90": time: missing unit in duration "90"`,
				`budgets.maxPrebindTimeout: Invalid value: {"m":1}: must be of type string (a duration needs a unit, such as 90s)`,
				`namespaces[1].names[1]: Invalid value: 7: must be of type string (a duration needs a unit, such as 90s)`,
				`namespaces[1].maxPrebindTimeout: Invalid value: "1 hour": time: unknown unit " hour" in duration "1 hour"`,
				`arguments.node-state.maxWait: Invalid value: 10: must be of type string (a duration needs a unit, such as 90s)`,
				`arguments.node-state.seconds: Invalid value: 70000: must be of type uint16 (a duration needs a unit, such as 90s)`,
				`arguments.node-state.inner.enabled: Invalid value: "maybe": must be of type bool (a duration needs a unit, such as 90s)`,
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			err := Default(registered()).decode([]byte(tc.content))
			require.Error(t, err, tc.reason)
			assert.ElementsMatch(t, tc.want, strings.Split(err.Error(), "\n"), tc.reason)
		})
	}
	err := Default(registered()).decode([]byte(head + "mode: Audit\nmode: Off\n"))
	require.ErrorContains(t, err, `line 4: mapping key "mode" already defined at line 3`, "duplicate fields are an error")
}

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
	list := []framework.Registration{{Name: "a", On: true}, {Name: "b", On: true}, {Name: "c"}}
	cases := map[string]struct {
		reason string
		flag   []string
		want   []string
		// says is part of the error. It is empty for no error.
		says string
	}{
		"Default":      {reason: "'*' selects everything that is on by default", flag: []string{"*"}, want: []string{"a", "b"}},
		"None":         {reason: "an empty list switches everything off"},
		"OffByDefault": {reason: "a name selects an entry that is off by default", flag: []string{"c"}, want: []string{"c"}},
		"AllAndMore":   {reason: "'*' and a name can be combined", flag: []string{"*", "c"}, want: []string{"a", "b", "c"}},
		"AllButOne":    {reason: "'-x' overrides '*'", flag: []string{"*", "-a"}, want: []string{"b"}},
		"ListOrder":    {reason: "the order is that of the registration", flag: []string{"c", "b", "a"}, want: []string{"a", "b", "c"}},
		"OnlyOff":      {reason: "without '*' nothing is selected", flag: []string{"-a"}},
		"OnAndOff":     {reason: "an entry cannot be on and off", flag: []string{"a", "-a"}, says: `"a" is switched both on and off`},
		"MinusStar":    {reason: "'-*' is not supported", flag: []string{"-*"}, says: `"*"`},
		"Unknown":      {reason: "the error lists the known names", flag: []string{"x"}, says: "a, b, c"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			problems := checkToggles(field.NewPath("things"), "thing", pluginNames(list), tc.flag)
			if tc.says != "" {
				require.ErrorContains(t, problems.ToAggregate(), tc.says, tc.reason)
				return
			}
			require.Empty(t, problems, tc.reason)
			c := &PrebindConfiguration{PreBindPlugins: tc.flag, registry: &Registry{Plugins: list}}
			assert.Equal(t, tc.want, pluginNames(c.SelectedPlugins()), tc.reason)
		})
	}
}

func TestRegistryCheck(t *testing.T) {
	named := func(name string) framework.Registration {
		return framework.Registration{Name: name, Description: "d", New: func(framework.Handle, framework.Arguments) (framework.Plugin, error) { return nil, nil }}
	}
	for name, tc := range map[string]struct {
		reason  string
		plugins []framework.Registration
		want    string
	}{
		"Different": {reason: "the names are unique", plugins: []framework.Registration{named("a"), named("b")}},
		"Twice":     {reason: "both would write under one name", plugins: []framework.Registration{named("a"), named("a")}, want: `PreBind plugin "a": registered twice, or another component has its name`},
		"Binder":    {reason: "Prebind itself has the name", plugins: []framework.Registration{named("binder")}, want: `PreBind plugin "binder": registered twice, or another component has its name`},
		"Key":       {reason: "its annotations would be invalid", plugins: []framework.Registration{named("a_b")}, want: `PreBind plugin "a_b": the name is not valid as part of an annotation key`},
	} {
		t.Run(name, func(t *testing.T) {
			err := (&Registry{Plugins: tc.plugins}).Check()
			if tc.want == "" {
				require.NoError(t, err, tc.reason)
			} else {
				require.ErrorContains(t, err, tc.want, tc.reason)
			}
		})
	}
}
