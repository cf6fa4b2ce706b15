// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"maps"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/binder/framework"
)

const (
	// timeoutAnnotation of a Binding, or of a pod, requests another budget.
	timeoutAnnotation = framework.Binder + "." + framework.Domain + "/timeout"
	// requireAnnotation of a Binding, or of a pod, names the PreBind plugins that must
	// take part in its bind.
	requireAnnotation = framework.Binder + "." + framework.Domain + "/require"
)

// budgetOf returns how long the attempt may take: what the Binding, or else the pod, requests,
// up to the limit of the policy; otherwise the default of the policy.
func budgetOf(own policy, b *corev1.Binding, pod *corev1.Pod) (time.Duration, *framework.Error) {
	p, ok := parameter(timeoutAnnotation, b, pod)
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
func requiredPlugins(plugins []framework.PreBinder, b *corev1.Binding, pod *corev1.Pod) (map[string]bool, *framework.Error) {
	p, ok := parameter(requireAnnotation, b, pod)
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

// parameter returns the annotation of the Binding, or else of the pod.
func parameter(key string, b *corev1.Binding, pod *corev1.Pod) (framework.Parameter, bool) {
	p := framework.Parameter{Annotation: key, On: framework.Object{Kind: "Binding", Namespace: pod.Namespace, Name: pod.Name}}
	var ok bool
	if p.Value, ok = b.Annotations[key]; ok {
		return p, true
	}
	p.On.Kind = "Pod"
	p.Value, ok = pod.Annotations[key]
	return p, ok
}

// takingPart returns the plugins that take part in the bind, in order.
func takingPart(plugins []framework.PreBinder, required map[string]bool, b *corev1.Binding, pod *corev1.Pod) []framework.PreBinder {
	var taking []framework.PreBinder
	for _, p := range plugins {
		on, ok := p.(framework.OnRequest)
		if !ok || required[p.Name()] || len(framework.Parameters(p.Name(), on.RequestedBy(), b, pod)) > 0 {
			taking = append(taking, p)
		}
	}
	return taking
}

func takesPart(plugins []framework.PreBinder, name string) bool {
	return slices.ContainsFunc(plugins, func(p framework.PreBinder) bool { return p.Name() == name })
}

// sameParameters returns whether a Binding and its pod have the same parameters for the binder
// and the plugins as those of the context. What plugins added to the Binding does not count: it
// comes back when the API server calls again for the same request.
func sameParameters(plugins []framework.PreBinder, b *corev1.Binding, pod *corev1.Pod, bc *framework.BindContext) bool {
	added := bc.Annotations()
	none := func(string, string) bool { return false }
	ours := func(key, value string) bool {
		prefix, short, _ := strings.Cut(key, "/")
		own, ok := added[strings.TrimSuffix(prefix, "."+framework.Domain)][short]
		return ok && own == value || key == framework.AttemptAnnotation
	}
	return sameFor(plugins, b.Annotations, bc.Binding.Annotations, ours) && sameFor(plugins, pod.Annotations, bc.Pod.Annotations, none)
}

// sameFor returns whether the annotations are the same for the binder and the plugins, except
// those to leave out.
func sameFor(plugins []framework.PreBinder, a, b map[string]string, leaveOut func(key, value string) bool) bool {
	return sameWhere(a, b, func(key, value string) bool { return isParameter(plugins, key) && !leaveOut(key, value) })
}

// isParameter returns whether an annotation is for the binder or an enabled plugin.
func isParameter(plugins []framework.PreBinder, key string) bool {
	prefix, _, _ := strings.Cut(key, "/")
	name, ok := strings.CutSuffix(prefix, "."+framework.Domain)
	return ok && (name == framework.Binder || takesPart(plugins, name))
}

// sameWhere returns whether the values that count are the same.
func sameWhere(a, b map[string]string, counts func(key, value string) bool) bool {
	within := func(x, y map[string]string) bool {
		for key, value := range x {
			if had, ok := y[key]; (!ok || had != value) && counts(key, value) {
				return false
			}
		}
		return true
	}
	return within(a, b) && within(b, a)
}

// sameOrigin returns whether the request is of the same user as the context, with the same annotations and labels
// of the Binding. Parameters do not count; see sameParameters.
func sameOrigin(plugins []framework.PreBinder, r Request, bc *framework.BindContext) bool {
	return sameUser(r.User, bc.User) && maps.Equal(r.Binding.Labels, bc.Binding.Labels) &&
		sameWhere(r.Binding.Annotations, bc.Binding.Annotations, func(key, _ string) bool { return !isParameter(plugins, key) })
}

func sameUser(a, b authenticationv1.UserInfo) bool {
	return a.Username == b.Username && a.UID == b.UID && slices.Equal(a.Groups, b.Groups) &&
		maps.EqualFunc(a.Extra, b.Extra, slices.Equal[authenticationv1.ExtraValue])
}
