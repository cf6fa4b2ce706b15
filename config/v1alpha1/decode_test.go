// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// inner is a struct inside arguments.
type inner struct {
	On bool `yaml:"on"`
}

// waiting are arguments of a plugin.
type waiting struct {
	inner   `yaml:",inline"`
	MaxWait time.Duration `yaml:"maxWait"`
	Names   []string      `yaml:"names"`
	Inner   *inner        `yaml:"inner"`
	Seconds uint16        `yaml:"seconds"`
	Other   map[string]int
	hidden  bool
}

func (w *waiting) AddFlags(fs *pflag.FlagSet) {
	w.hidden = true
	fs.DurationVar(&w.MaxWait, "node-state-max-wait", w.MaxWait, "How long.")
}

func (w *waiting) Validate() []Problem {
	if len(w.Names) > 0 && w.Names[0] == "" {
		return []Problem{{Field: "names[0]", Err: errors.New("it is empty")}}
	}
	return nil
}

func (w *waiting) LongestWait() (string, time.Duration) { return "maxWait", w.MaxWait }

// registered returns mutators and plugins for tests.
func registered() Registered {
	return Registered{
		Mutators: []Component{{Name: "topology", On: true}, {Name: "node-info"}},
		Plugins: []Component{
			{Name: "node-state", On: true, Arguments: func() Arguments { return &waiting{MaxWait: time.Minute} }},
			{Name: "device", On: true},
		},
	}
}

const head = "apiVersion: config.prebind.dev/v1alpha1\nkind: PrebindConfiguration\n"

func TestRead(t *testing.T) {
	want := Default(registered())
	want.Mode = ModeAudit
	want.Mutators = []string{"topology"}
	want.Budgets.MaxHolds = 3
	want.Budgets.PreBindTimeout = 90 * time.Second
	want.Namespaces = []NamespaceRule{{Names: []string{"a", "b"}, Mode: ModeOff}, {Names: []string{}}}
	want.Arguments[0].Arguments = &waiting{
		MaxWait: time.Minute, Names: []string{"x"}, Seconds: 7, inner: inner{On: true}, Inner: &inner{On: true}, Other: map[string]int{"a": 1},
	}
	c := Default(registered())
	f, err := c.Read("file", []byte(head+`mode: Audit
mutators: [topology]
prebindPlugins:
budgets:
  maxHolds: 3
  prebindTimeout: 1m30s
namespaces:
- {names: [a, b], mode: "Off"}
- names: []
arguments:
  node-state: {names: [x], seconds: 7, on: true, inner: &inner {on: true}, other: {a: 1}}
`))
	require.NoError(t, err)
	want.registered, c.registered = Registered{}, Registered{}
	assert.Equal(t, want, c, "fields that are not in the file are kept, and lists are replaced")

	assert.True(t, f.Has("budgets.maxHolds"))
	assert.False(t, f.Has("budgets.hold"))
	no := errors.New("no")
	for path, says := range map[string]string{
		"budgets.maxHolds":                "file:7: no",
		"budgets.hold":                    "file:6: no",
		"namespaces[1].names":             "file:11: no",
		"namespaces[5].names":             "file:9: no",
		"arguments.node-state.names[0]":   "file:13: no",
		"arguments.device":                "file:12: no",
		"requiredMutators":                "file: no",
		"requiredMutators[0].not.a.field": "file: no",
	} {
		err := f.At(path, no)
		require.EqualError(t, err, says, path)
		assert.ErrorIs(t, err, no)
	}
}

func TestRead_Merge(t *testing.T) {
	c := Default(registered())
	_, err := c.Read("file", []byte(head+"namespaces:\n- &a {names: [a], mode: Audit}\n- {<<: *a, names: [b]}\n"))
	require.NoError(t, err)
	assert.Equal(t, []NamespaceRule{{Names: []string{"a"}, Mode: ModeAudit}, {Names: []string{"b"}, Mode: ModeAudit}}, c.Namespaces)
	_, err = c.Read("file", []byte(head+"budgets: &a {<<: *a}\n"))
	assert.ErrorContains(t, err, "file:3: ")
}

func TestRead_Errors(t *testing.T) {
	const top = "apiVersion, kind, mode, mutators, requiredMutators, prebindPlugins, budgets, namespaces, arguments"
	cases := map[string]struct {
		reason, content string
		want            []string
	}{
		"Empty":        {reason: "an empty file is not a configuration", want: []string{`file: must be kind PrebindConfiguration of apiVersion config.prebind.dev/v1alpha1, got kind "" of apiVersion ""`}},
		"OtherVersion": {reason: "fields of another version can have other meanings", content: "apiVersion: config.prebind.dev/v2\nkind: PrebindConfiguration\nfoo: 1\n", want: []string{`file:1: must be kind PrebindConfiguration of apiVersion config.prebind.dev/v1alpha1, got kind "PrebindConfiguration" of apiVersion "config.prebind.dev/v2"`}},
		"InvalidYAML":  {reason: "the error has the line", content: head + "budgets:\n\thold: 1s\n", want: []string{"file: invalid YAML: line 4: found character that cannot start any token"}},
		"NoMap":        {reason: "a list has no fields", content: "- a\n", want: []string{`file: must be kind PrebindConfiguration of apiVersion config.prebind.dev/v1alpha1, got kind "" of apiVersion ""`}},
		"Unknown":      {reason: "the error lists the known fields", content: head + "budgets:\n  hodl: 1s\n", want: []string{`file:4: unknown field "hodl": must be one of hold, maxHolds, prebindTimeout, maxPrebindTimeout`}},
		"UnknownOnTop": {reason: "unknown fields are reported at the top", content: head + "colour: red\n", want: []string{`file:3: unknown field "colour": must be one of ` + top}},
		"UnknownInList": {
			reason: "unknown fields are reported in lists", content: head + "namespaces:\n- names: []\n  moed: x\n",
			want: []string{`file:5: unknown field "moed": must be one of names, mode, prebindTimeout, maxPrebindTimeout`},
		},
		"UnknownPlugin":   {reason: "unknown fields are reported in arguments", content: head + "arguments:\n  device: {}\n", want: []string{`file:4: unknown field "device": must be one of node-state`}},
		"UnknownArgument": {reason: "unknown fields are reported in the arguments of a plugin", content: head + "arguments:\n  node-state: {hidden: true}\n", want: []string{`file:4: unknown field "hidden": must be one of on, maxWait, names, inner, seconds, other`}},
		"Twice":           {reason: "one of the two values would be lost", content: head + "mode: Audit\nmode: Off\n", want: []string{`file:4: duplicate field "mode", first in line 3`}},
		"Duration":        {reason: "a duration has a unit", content: head + "budgets: {hold: 5}\n", want: []string{`file:3: must be a duration such as 90s or 5m, got "5"`}},
		"Number":          {reason: "a string is not a number", content: head + "budgets: {maxHolds: many}\n", want: []string{`file:3: must be a whole number, got "many"`}},
		"NumberOfBits":    {reason: "a number must fit into its type", content: head + "arguments: {node-state: {seconds: 70000}}\n", want: []string{`file:3: must be a whole number, got "70000"`}},
		"Bool":            {reason: "a string is not a bool", content: head + "arguments: {node-state: {inner: {on: maybe}}}\n", want: []string{`file:3: must be true or false, got "maybe"`}},
		"List":            {reason: "a string is not a list", content: head + "mutators: a\n", want: []string{`file:3: must be a list of strings, got "a"`}},
		"Rules":           {reason: "a string is not a list of rules", content: head + "namespaces: a\n", want: []string{`file:3: must be a list, got "a"`}},
		"Map":             {reason: "a list is not a map", content: head + "budgets: [a]\n", want: []string{"file:3: must be a map of fields, got a list"}},
		"Word":            {reason: "a map is not a string", content: head + "mode: {a: b}\n", want: []string{"file:3: must be a string, got a map"}},
		"Cycle":           {reason: "an alias that contains itself is an error", content: head + "mutators: &a [*a]\n", want: []string{"file:3: must be a string, got a list"}},
		"Documents":       {reason: "the second document would be lost", content: head + "---\n" + head, want: []string{"file: must have one document, has more"}},
		"Several": {
			reason: "all problems are reported together", content: head + "budgets: {maxHolds: many}\ncolour: red\n",
			want: []string{`file:3: must be a whole number, got "many"`, `file:4: unknown field "colour": must be one of ` + top},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := Default(registered()).Read("file", []byte(tc.content))
			require.Error(t, err, tc.reason)
			assert.ElementsMatch(t, tc.want, strings.Split(err.Error(), "\n"), tc.reason)
		})
	}
}

// FuzzRead checks that no content causes a panic, and that each line of an error begins with the file.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		"", head, head + "budgets: {maxHolds: many}\n", head + "namespaces:\n- names: [a]\n", "{", "\t", "a: &a [*a]", "? {a: b}\n: c",
		head + "mode: !!binary x\n", head + "budgets: &a {<<: *a}\n", head + "namespaces: [{<<: [{mode: x}]}]\n", "\xff",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		file, err := Default(registered()).Read("file", content)
		if err == nil {
			assert.True(t, file.Has("kind"))
			return
		}
		for line := range strings.SplitSeq(err.Error(), "\n") {
			assert.True(t, strings.HasPrefix(line, "file:"), line)
		}
	})
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
	_, err = again.Read("file", encoded)
	require.NoError(t, err)
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
	assert.Contains(t, got.Properties.Arguments.Properties["node-state"].Properties, "on", "fields of inlined structs are included")
	assert.NotContains(t, got.Properties.Arguments.Properties["node-state"].Properties, "hidden")
}
