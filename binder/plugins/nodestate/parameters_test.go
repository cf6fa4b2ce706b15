// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/nodecondition"
	"github.com/prebind/prebind/test/gen"
)

func TestParse(t *testing.T) {
	type annotations map[string]string
	cases := map[string]struct {
		reason       string
		pod, binding annotations
		labels       string
		conditions   []nodecondition.Expectation
		wait         time.Duration
		// fields are the fields of the error, and on is its object.
		fields  []string
		on      string
		message string
	}{
		"Nothing": {reason: "annotations are optional"},
		"All": {
			reason:  "all annotations are set",
			binding: annotations{"expect": "gpu.example.com/driver=550,!maintenance", "expect-conditions": "GPUReady=True", "wait": "30s"},
			labels:  "gpu.example.com/driver=550,!maintenance", conditions: []nodecondition.Expectation{{Type: "GPUReady", Status: "True"}}, wait: 30 * time.Second,
		},
		"BindingWins": {
			reason: "the Binding's value of each key wins",
			pod:    annotations{"expect": "a=b", "wait": "5s"}, binding: annotations{"expect": "c=d"}, labels: "c=d", wait: 5 * time.Second,
		},
		"BindingTakesBack": {
			reason: "an empty value expects nothing",
			pod:    annotations{"expect": "a=b", "expect-conditions": "Ready"}, binding: annotations{"expect": "", "expect-conditions": " "},
		},
		"WaitCapped": {reason: "the operator limits the wait", binding: annotations{"wait": "2h"}, wait: maxWait},

		"NUL": {
			reason:  "the parser ignores everything after it",
			binding: annotations{"expect": "a=b,\x00!maintenance"}, fields: []string{"expect"},
		},
		"BadStatus": {
			reason:  "statuses are written as in the API",
			binding: annotations{"expect-conditions": "GPUReady=true"}, fields: []string{"expect-conditions"},
			message: `annotation node-state.prebind.dev/expect-conditions must be a list of Type=Status: status must be True, False, or Unknown in "GPUReady=true"`,
		},
		"NoWait": {reason: "zero means no wait", binding: annotations{"wait": "0s"}, fields: []string{"wait"}},
		"TooLong": {
			reason:  "the value is too long",
			binding: annotations{"expect": "a" + strings.Repeat(",a", maxValue/2)}, fields: []string{"expect"},
			message: "annotation node-state.prebind.dev/expect is longer than 4096 bytes",
		},
		"Several": {
			reason: "the message lists all problems in the order of the keys",
			pod:    annotations{"wait": "x"}, binding: annotations{"expect": "=", "a": "", "b": "", "c": "", "d": ""},
			fields: []string{"a", "b", "c", "d", "expect"}, on: "Binding default/web", message: "and 1 more",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var podOptions []gen.PodOption
			for key, value := range tc.pod {
				podOptions = append(podOptions, annotation(key, value))
			}
			var options []gen.BindingOption
			for key, value := range tc.binding {
				options = append(options, annotation(key, value))
			}
			bc := contextFor(thePod(podOptions...), theNode(), options...)
			got, err := parse(framework.Parameters(Name, bc.Binding, bc.Pod), maxWait)
			if tc.fields == nil {
				require.NoError(t, err, tc.reason)
				var texts []string
				for _, r := range got.labels {
					texts = append(texts, r.String())
				}
				assert.Equal(t, tc.labels, strings.Join(texts, ","), tc.reason)
				assert.Equal(t, tc.conditions, got.conditions, tc.reason)
				assert.Equal(t, tc.wait, got.wait, tc.reason)
				return
			}
			invalid := requireInvalid(t, err)
			var fields []string
			for _, f := range invalid.Fields {
				fields = append(fields, strings.TrimSuffix(strings.TrimPrefix(f.Path, "metadata.annotations[node-state.prebind.dev/"), "]"))
			}
			assert.Equal(t, tc.fields, fields, "%s: %v", tc.reason, err)
			assert.Contains(t, invalid.Message, tc.message, tc.reason)
			if tc.on != "" {
				assert.Equal(t, tc.on, invalid.Object.String(), tc.reason)
			}
		})
	}
}

// requireInvalid checks the properties of every error of the parser.
func requireInvalid(t *testing.T, err error) *framework.Error {
	t.Helper()
	require.Error(t, err)
	var invalid *framework.Error
	require.ErrorAs(t, err, &invalid)
	require.Equal(t, framework.KindInvalid, invalid.Kind)
	require.NotEmpty(t, invalid.Fields)
	for _, f := range invalid.Fields {
		require.Contains(t, f.Path, "metadata.annotations[node-state.prebind.dev/")
		require.NotEmpty(t, f.Message)
		require.LessOrEqual(t, len(f.Message), 600)
	}
	require.LessOrEqual(t, len(err.Error()), 4096)
	require.True(t, utf8.ValidString(err.Error()))
	require.NotContains(t, err.Error(), "\n", "a message is one line")
	return invalid
}

func FuzzParameters(f *testing.F) {
	f.Add("gpu.example.com/driver=550,!maintenance", "GPUReady=True", "30s")
	f.Add("a in (x,y),b notin (),c>5", "A!=Unknown,B==False", "1h2m3.5s")
	f.Add("a in (", "=,==,!=", "-1s")
	f.Add("!", "!A", "999999999h")
	f.Add("a=b\x00,c=d", "A\x00", "1\x00s")
	f.Add("ключ=значение,\u202e", "Готов=True\n", "٣s")
	f.Add(strings.Repeat("a,", 1<<19), strings.Repeat("A", 1<<20), strings.Repeat("1h", 1<<19))
	f.Add(strings.Repeat("(", 4096), strings.Repeat("A=True,", 500), strings.Repeat("9", 4096)+"s")
	f.Fuzz(func(t *testing.T, expect, conditions, wait string) {
		values := map[string]string{keyExpect: expect, keyConditions: conditions, keyWait: wait}
		parameters := map[string]framework.Parameter{}
		for key, value := range values {
			parameters[key] = framework.Parameter{Annotation: Name + "." + domain + "/" + key, Value: value, On: framework.Object{Kind: "Pod", Name: "web"}}
		}
		e, err := parse(parameters, maxWait)
		if err != nil {
			invalid := requireInvalid(t, err)
			require.Equal(t, expectations{}, e)
			for _, field := range invalid.Fields {
				require.Equal(t, -1, strings.IndexFunc(field.Message, func(r rune) bool { return !unicode.IsPrint(r) }), "%q", field.Message)
			}
			return
		}
		require.Positive(t, e.wait)
		require.LessOrEqual(t, e.wait, maxWait)
		for _, c := range e.conditions {
			require.NotEmpty(t, c.Type)
			require.Contains(t, []corev1.ConditionStatus{"True", "False", "Unknown"}, c.Status)
		}
		// judge accepts every parsed value, and its messages are bounded.
		found, err := judge(thePod(), theNode(), e, all)
		require.NoError(t, err)
		require.LessOrEqual(t, len(found.String()), 4096)
		require.LessOrEqual(t, len(found.awaited()), 4096)
	})
}

// The annotations have the maximum size that the API server accepts.
func TestParse_RejectsLongValuesFirst(t *testing.T) {
	for _, unit := range []string{"a,", "(", "!", "A=True,", "x"} {
		value := strings.Repeat(unit, 256<<10/len(unit))
		for _, key := range []string{keyExpect, keyConditions, keyWait} {
			parameters := map[string]framework.Parameter{key: {Annotation: Name + "." + domain + "/" + key, Value: value}}
			var err error
			allocs := testing.AllocsPerRun(10, func() { _, err = parse(parameters, maxWait) })
			_ = requireInvalid(t, err)
			assert.Less(t, allocs, 50.0, "%s of %q…: parse checks the length first", key, unit)
		}
	}
}
