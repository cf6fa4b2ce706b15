// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

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
// up to the limit of the policy; otherwise the default of the policy.
func budgetOf(own policy, given map[string]framework.Parameter) (time.Duration, *framework.Error) {
	p, ok := given[timeoutKey]
	if !ok {
		return own.preBindTimeout, nil
	}
	budget, err := time.ParseDuration(p.Value)
	if err != nil || budget <= 0 {
		invalid := framework.Invalid(p.On, "annotation "+p.Annotation+": invalid duration", p.Field("must be a positive duration")).
			Advise("use a positive duration, for example 90s or 5m")
		invalid.Plugin = framework.Binder
		return 0, invalid
	}
	return min(budget, own.maxPreBindTimeout), nil
}

// requiredPlugins returns the PreBind plugins that must take part in the bind. It is an error if one
// of them is not enabled.
func requiredPlugins(plugins []framework.Plugin, given map[string]framework.Parameter) (map[string]bool, *framework.Error) {
	p, ok := given[requireKey]
	if !ok {
		return nil, nil
	}
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
			err := framework.Refuse(p.On, "annotation %s: PreBind plugin %q is not enabled (%s)",
				p.Annotation, short(name), known).Advise("correct the annotation, or enable the plugin with --prebind-plugins")
			err.Plugin = framework.Binder
			return nil, err
		}
		names[name] = true
	}
	return names, nil
}

// takingPart returns the plugins that take part in the bind, in order.
func takingPart(plugins []framework.Plugin, required map[string]bool, b *corev1.Binding, pod *corev1.Pod) []framework.Plugin {
	var taking []framework.Plugin
	for _, p := range plugins {
		_, onRequest := p.(framework.OnRequest)
		if !onRequest || required[p.Name()] || len(framework.Parameters(p.Name(), b, pod)) > 0 {
			taking = append(taking, p)
		}
	}
	return taking
}
