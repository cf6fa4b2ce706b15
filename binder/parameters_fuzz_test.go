// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/test/gen"
)

// FuzzBinderAnnotations: for every value of the binder's annotations, the result is a budget within
// the limits and enabled plugins, or an error that names the annotation and repeats at most
// maxEcho bytes of it.
func FuzzBinderAnnotations(f *testing.F) {
	for _, seed := range []string{"", "5m", "-1s", "1e9h", "90", "p", " p , q,", ",,,", "p,other", "\x00", "größe", strings.Repeat("p,", 1<<19), strings.Repeat("9", 1<<20) + "h"} {
		f.Add(seed, seed, true)
		f.Add(seed, "", false)
	}
	chain, err := mutators.NewChain(mutators.Options{})
	if err != nil {
		f.Fatal(err)
	}
	settings := &Settings{
		Mutators: chain, PreBindTimeout: time.Minute, MaxPreBindTimeout: time.Hour,
		Plugins: []framework.PreBinder{&plugin{name: "p"}, &plugin{name: "q"}},
	}
	f.Fuzz(func(t *testing.T, timeout, require string, onPod bool) {
		pod, binding := gen.Pod("web"), gen.Binding(thePod, "node-a")
		own := map[string]string{timeoutAnnotation: timeout, requireAnnotation: require}
		kind := "Binding"
		if onPod {
			pod.Annotations, kind = own, "Pod"
		} else {
			binding.Annotations = own
		}
		check := func(err *framework.Error, want framework.Kind, annotation string) {
			assert.Equal(t, want, err.Kind)
			assert.Equal(t, kind, err.Object.Kind)
			assert.Contains(t, err.Error(), annotation)
			assert.Less(t, len(err.Error()), 4096)
		}
		if budget, err := budgetOf(settings.policyFor("default"), binding, pod); err != nil {
			check(err, framework.KindInvalid, timeoutAnnotation)
		} else {
			assert.Positive(t, budget)
			assert.LessOrEqual(t, budget, time.Hour)
		}
		if required, err := requiredPlugins(settings.Plugins, binding, pod); err != nil {
			check(err, framework.KindRefuse, requireAnnotation)
		} else {
			delete(required, "")
			delete(required, "p")
			delete(required, "q")
			assert.Empty(t, required)
		}
	})
}
