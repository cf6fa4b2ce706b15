// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"slices"
	"strings"
	"time"

	"github.com/prebind/prebind/binder/framework"
)

const (
	// timeoutKey is the key of the annotation of a Binding, or of a pod, that requests another budget.
	timeoutKey = "timeout"
	// requireKey is the key of the annotation of a Binding, or of a pod, that names the PreBind plugins that must
	// take part in its bind.
	requireKey = "require"
)

// budgetOf returns how long the attempt may take: what the Binding, or else the pod, requests,
// up to the limit.
func budgetOf(limit time.Duration, p framework.Parameter) (time.Duration, *framework.Error) {
	budget, err := time.ParseDuration(p.Value)
	if err != nil || budget <= 0 {
		return 0, framework.Invalid(p.On, "annotation "+p.Annotation+": invalid duration", p.Field("must be a positive duration")).
			Advise("use a positive duration, for example 90s or 5m")
	}
	return min(budget, limit), nil
}

// requiredPlugins returns the PreBind plugins that must take part in the bind. It is an error if one
// of them is not enabled.
func requiredPlugins(plugins []framework.Plugin, p framework.Parameter) (map[string]bool, *framework.Error) {
	var on []string
	for _, plugin := range plugins {
		on = append(on, plugin.Name())
	}
	known := "enabled: " + strings.Join(on, ", ")
	if len(on) == 0 {
		known = "none is enabled"
	}
	names := map[string]bool{}
	for name := range strings.SplitSeq(p.Value, ",") {
		name = strings.TrimSpace(name)
		if name != "" && !slices.Contains(on, name) {
			return nil, framework.Refuse(p.On, "annotation %s: PreBind plugin %q is not enabled (%s)",
				p.Annotation, short(name), known).Advise("correct the annotation, or enable the plugin with --prebind-plugins")
		}
		names[name] = true
	}
	return names, nil
}
