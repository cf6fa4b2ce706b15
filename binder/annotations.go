// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/prebind/prebind/binder/framework"
)

// attemptAnnotation is where a bound pod tells which attempt bound it.
func attemptAnnotation(domain string) string { return framework.AttemptAnnotation(domain) }

// timeoutAnnotation is where a Binding, or a pod, asks for another budget.
func timeoutAnnotation(domain string) string { return guardName + "." + domain + "/timeout" }

// requireAnnotation is where a Binding, or a pod, names the PreBind plugins that
// must take part in its bind.
func requireAnnotation(domain string) string { return guardName + "." + domain + "/require" }

// attemptSeparator stands between the replica and the rest of an attempt's ID.
const attemptSeparator = "-"

// newAttemptID returns an identifier that no other attempt has, for all that
// matters: only attempts for one pod on one node are ever told apart by it. It
// begins with the replica, so that it can be told whether that still lives.
func (e *Engine) newAttemptID() string { return e.o.Replica + attemptSeparator + rand.String(10) }

// replicaOf is the replica that an attempt belongs to.
func replicaOf(attempt string) string {
	replica, _, _ := strings.Cut(attempt, attemptSeparator)
	return replica
}

// budget is how long the attempt may take: what the Binding or else the pod asks
// for, at most the operator's limit, or the operator's default.
func (e *Engine) budget(c *call) (time.Duration, *framework.Error) {
	p, ok := parameter(e.timeoutKey, c.Binding, c.pod)
	if !ok {
		return c.policy.preBindTimeout, nil
	}
	budget, err := time.ParseDuration(p.Value)
	if err != nil || budget <= 0 {
		invalid := framework.Invalid(p.On, "its annotation "+p.Annotation+" is no time", p.Field("must be a positive duration")).
			Advise("write it such as 90s or 5m")
		invalid.Plugin = guardName
		return 0, invalid
	}
	return min(budget, c.policy.maxPreBindTimeout), nil
}

// required are the PreBind plugins that must take part in the bind. One that is
// not switched on ends it: whoever asks for it relies on it.
func (e *Engine) required(c *call) (map[string]bool, *framework.Error) {
	p, ok := parameter(e.requireKey, c.Binding, c.pod)
	if !ok {
		return nil, nil
	}
	var on []string
	for _, plugin := range c.settings.Plugins {
		on = append(on, plugin.Name())
	}
	known := "on: " + strings.Join(on, ", ")
	if len(on) == 0 {
		known = "none is on"
	}
	required := map[string]bool{}
	for name := range strings.SplitSeq(p.Value, ",") {
		name = strings.TrimSpace(name)
		if name != "" && !slices.Contains(on, name) {
			err := framework.Refuse(p.On, "its annotation %s asks for the PreBind plugin %q, which is not switched on (%s)",
				p.Annotation, short(name), known).Advise("correct the annotation, or switch the plugin on by --prebind-plugins")
			err.Plugin = guardName
			return nil, err
		}
		required[name] = true
	}
	return required, nil
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
func takingPart(plugins []framework.PreBinder, domain string, required map[string]bool, b *corev1.Binding, pod *corev1.Pod) []framework.PreBinder {
	var taking []framework.PreBinder
	for _, p := range plugins {
		on, ok := p.(framework.OnAnnotation)
		if !ok || required[p.Name()] || len(framework.Parameters(domain, p.Name(), on.Asked(), b, pod)) > 0 {
			taking = append(taking, p)
		}
	}
	return taking
}

// sameParameters says whether a call tells the binder and its plugins the same, by
// Binding and pod, as the one that a context was made for. What the plugins
// themselves added to the Binding, which comes back when the API server calls again
// for the same request, does not count.
func (e *Engine) sameParameters(c *call, bc *framework.BindContext) bool {
	added := bc.Annotations()
	ours := func(key, value string) bool {
		prefix, short, _ := strings.Cut(key, "/")
		own, ok := added[strings.TrimSuffix(prefix, "."+e.o.Domain)][short]
		return ok && own == value || key == attemptAnnotation(e.o.Domain)
	}
	nobodys := func(string, string) bool { return false }
	return e.sameFor(c, c.Binding.Annotations, bc.Binding.Annotations, ours) && e.sameFor(c, c.pod.Annotations, bc.Pod.Annotations, nobodys)
}

// sameFor says whether the annotations tell the binder and its plugins the same, but
// for those to leave out.
func (e *Engine) sameFor(c *call, a, b map[string]string, leaveOut func(key, value string) bool) bool {
	relevant := func(key, value string) bool {
		prefix, _, _ := strings.Cut(key, "/")
		name, ok := strings.CutSuffix(prefix, "."+e.o.Domain)
		return ok && (name == guardName || takesPart(c.settings.Plugins, name)) && !leaveOut(key, value)
	}
	within := func(x, y map[string]string) bool {
		for key, value := range x {
			if had, ok := y[key]; (!ok || had != value) && relevant(key, value) {
				return false
			}
		}
		return true
	}
	return within(a, b) && within(b, a)
}
