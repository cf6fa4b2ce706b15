// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
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
func registered() Registered {
	return Registered{
		Mutators: []Component{{Name: "topology", On: true}, {Name: "node-info"}},
		Plugins: []Component{
			{Name: "node-state", On: true, Arguments: func() Arguments { return &waiting{MaxWait: metav1.Duration{Duration: time.Minute}} }},
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
	want.Namespaces = []NamespaceRule{{Names: []string{"on", "2001-01-01"}, Mode: ModeOff}, {Names: []string{}, Mode: ModeOff, PreBindTimeout: minute}}
	want.Arguments[0].Arguments = &waiting{MaxWait: minute, Names: []string{"x"}, Seconds: 7, Inner: &inner{Enabled: true}}
	c := Default(registered())
	err := c.decode([]byte("# a comment\n---\n" + head + `mode: Audit
mutators: [topology]
prebindPlugins:
budgets:
  maxHolds: 3
  prebindTimeout: 1m30s
namespaces:
- {names: [on, 2001-01-01], mode: Off}
- {names: [], mode: false, prebindTimeout: 1m}
arguments:
  node-state: {names: [x], seconds: 7, maxWait: null, inner: &inner {enabled: true}}
`))
	require.NoError(t, err)
	want.registered, c.registered = Registered{}, Registered{}
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
		"Empty":        {reason: "an empty file is not a configuration", want: []string{version + `"" of apiVersion ""`}},
		"OtherVersion": {reason: "fields of another version can have other meanings", content: "apiVersion: v2\nkind: X\nfoo: 1\n", want: []string{version + `"X" of apiVersion "v2"`}},
		"InvalidYAML":  {reason: "the error has the line", content: head + "budgets:\n\thold: 1s\n", want: []string{"invalid YAML: yaml: line 4: found character that cannot start any token"}},
		"NoMap":        {reason: "a list has no fields", content: "- a\n", want: []string{version + `"" of apiVersion ""`}},
		"Documents":    {reason: "the second document would be lost", content: head + "---\n" + head, want: []string{"must have one document, has more"}},
		"Cycle":        {reason: "an alias that contains itself is an error", content: head + "mutators: &a [*a]\n", want: []string{`line 3: mutators[0]: Invalid value: "!!seq": must be of type string`}},
		"Several": {
			reason: "all unknown and duplicate fields, and all values of another type, are reported together",
			content: head + "mode: Audit\nmode: Off\nbudgets: {hodl: 1s, hold: 5, maxHolds: many}\nmutators: topology\nnamespaces:\n- {moed: x, names: [], names: []}\n" +
				"arguments:\n  device: {}\n  node-state: {hidden: true, inner: {enabled: maybe}, seconds: 70000}\n",
			want: []string{
				"line 4: mode: duplicate field: must be set once",
				"line 5: budgets.hodl: unknown field: must be one of hold, maxHolds, prebindTimeout, maxPrebindTimeout",
				`line 5: budgets.hold: Invalid value: "5": must be a duration with a unit, such as 90s`,
				`line 5: budgets.maxHolds: Invalid value: "many": must be of type integer`,
				`line 6: mutators: Invalid value: "topology": must be of type array`,
				"line 8: namespaces[0].moed: unknown field: must be one of names, mode, prebindTimeout, maxPrebindTimeout",
				"line 8: namespaces[0].names: duplicate field: must be set once",
				"line 10: arguments.device: unknown field: must be one of node-state",
				"line 11: arguments.node-state.hidden: unknown field: must be one of maxWait, names, inner, seconds",
				`line 11: arguments.node-state.inner.enabled: Invalid value: "maybe": must be of type boolean`,
				`line 11: arguments.node-state.seconds: Invalid value: "70000": must be of type integer`,
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
}

func TestEncode(t *testing.T) {
	c := Default(registered())
	c.Namespaces = []NamespaceRule{{Names: []string{"a"}, Mode: ModeOff}}
	encoded, err := c.EncodeWithComments()
	require.NoError(t, err)
	assert.Contains(t, string(encoded), "budgets:\n  # Maximum time a webhook call is held")
	assert.Contains(t, string(encoded), "    # How long.\n    maxWait: 1m0s\n")
	for line := range strings.Lines(string(encoded)) {
		assert.LessOrEqual(t, len(line), 105)
	}
	again := Default(registered())
	require.NoError(t, again.decode(encoded))
	plain, err := c.Encode()
	require.NoError(t, err)
	same, err := again.Encode()
	require.NoError(t, err)
	assert.Equal(t, string(plain), string(same))
}

func TestSchema(t *testing.T) {
	schema := Default(registered()).Schema()
	encoded, err := json.Marshal(schema)
	require.NoError(t, err)
	var got struct {
		Required             []string
		AdditionalProperties bool
		Properties           struct {
			APIVersion struct{ Const string }
			Mode       struct {
				Enum    []string
				Default string
			}
			Budgets struct {
				Properties struct {
					Hold struct{ Type, Description, Default, Pattern string }
				}
			}
			Namespaces struct {
				Items struct {
					AdditionalProperties bool
					Properties           map[string]any
				}
			}
			Arguments struct {
				Properties map[string]struct{ Properties map[string]any }
			}
		}
	}
	got.AdditionalProperties = true
	require.NoError(t, json.Unmarshal(encoded, &got))
	assert.Equal(t, []string{"apiVersion", "kind"}, got.Required)
	assert.False(t, got.AdditionalProperties)
	assert.Equal(t, APIVersion, got.Properties.APIVersion.Const)
	assert.Equal(t, []string{"Enforce", "Audit", "Off"}, got.Properties.Mode.Enum)
	hold := got.Properties.Budgets.Properties.Hold
	assert.Equal(t, "string 25s", hold.Type+" "+hold.Default)
	assert.Contains(t, hold.Description, "Maximum time a webhook call is held")
	for _, d := range []string{"90s", "1h30m", "1.5s", "0"} {
		assert.Regexp(t, hold.Pattern, d)
	}
	for _, d := range []string{"", "5", "s", "5 s"} {
		assert.NotRegexp(t, hold.Pattern, d)
	}
	assert.Len(t, got.Properties.Namespaces.Items.Properties, 4)
	assert.Contains(t, got.Properties.Arguments.Properties["node-state"].Properties, "maxWait")
	assert.NotContains(t, got.Properties.Arguments.Properties["node-state"].Properties, "hidden")
}
