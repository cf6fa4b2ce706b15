// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/prebind/prebind/test/gen"
)

// requires returns the annotation that requires the PreBind plugins.
func requires(names string) gen.Meta { return gen.Annotation("binder.prebind.dev/require", names) }

// A pod that requires a plugin is not bound without it.
func TestRequire(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		reason  string
		pod     []gen.PodOption
		binding []gen.BindingOption
		// missing is the plugin that is not available. If it is empty, the pod is bound.
		missing string
	}{
		"one that is on":                     {reason: "it takes part", binding: []gen.BindingOption{requires("node-state")}},
		"several":                            {reason: "all of them take part", binding: []gen.BindingOption{requires("volumebinding, device")}},
		"none":                               {reason: "the annotation requires no plugin", binding: []gen.BindingOption{requires("")}},
		"one that there is not":              {reason: "no plugin would do the required work", binding: []gen.BindingOption{requires("node-state,fpga")}, missing: "fpga"},
		"a mutator":                          {reason: "a mutator is not a PreBind plugin", binding: []gen.BindingOption{requires("topology")}, missing: "topology"},
		"the pod asks":                       {reason: "the requirement of the user applies regardless of the scheduler", pod: []gen.PodOption{requires("fpga")}, missing: "fpga"},
		"the pod asks for one that is on":    {reason: "it takes part", pod: []gen.PodOption{requires("device")}},
		"the Binding corrects what pod asks": {reason: "the value of the Binding takes precedence", pod: []gen.PodOption{requires("fpga")}, binding: []gen.BindingOption{requires("device")}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, shared, nil)
			b.podWith(byHand, tc.pod...)
			err := b.bindByHand(b.binding("node-1", tc.binding...))
			if tc.missing == "" {
				assert.NoError(t, err, tc.reason)
				b.assertTopology(b.untilBound())
				return
			}
			b.assertNotSwitchedOn(err, tc.missing, "node-state", "device", "volumebinding")
			assert.Empty(t, b.until("still unbound", notBound).Spec.NodeName, tc.reason)
		})
	}
}

// assertNotSwitchedOn checks the refusal of a bind that requires a disabled plugin.
func (b *bench) assertNotSwitchedOn(err error, plugin string, on ...string) {
	b.t.Helper()
	require.Error(b.t, err)
	assert.True(b.t, apierrors.IsForbidden(err), "the request should be refused: %v", err)
	words := append([]string{"binder.prebind.dev/require", `"` + plugin + `" is not enabled (`}, on...)
	for _, w := range words {
		assert.ErrorContains(b.t, err, w)
	}
	_, list, _ := strings.Cut(err.Error(), "is not enabled (")
	assert.NotContains(b.t, list, plugin)
	assert.Equal(b.t, []string{"refused"}, b.decisions())
	b.untilEvent(append(words, "BindRefused")...)
}
