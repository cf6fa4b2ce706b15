// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/mutators"
)

// settings are the configuration, which the file and flags set, of what is compiled in.
type settings struct {
	*v1alpha1.PrebindConfiguration
	registry *registry
}

// defaultSettings are those of the registry's entries.
func defaultSettings(r *registry) *settings {
	var all v1alpha1.Registered
	for _, m := range r.mutators {
		all.Mutators = append(all.Mutators, v1alpha1.Component{Name: m.Name, On: m.On, Arguments: m.Arguments})
	}
	for _, p := range r.plugins {
		all.Plugins = append(all.Plugins, v1alpha1.Component{Name: p.Name, On: p.On, Arguments: p.Arguments})
	}
	return &settings{PrebindConfiguration: v1alpha1.Default(all), registry: r}
}

// argumentsOf returns the arguments of a mutator or plugin; nil if it has none.
func (s *settings) argumentsOf(name string) Arguments { return s.Arguments.Of(name) }

// addFlags adds the flags by section, bound to the settings. Their names are those
// of flagOf.
func (s *settings) addFlags(sets *cliflag.NamedFlagSets) {
	fs := sets.FlagSet("Mutators and plugins")
	fs.StringVar((*string)(&s.Mode), "mode", string(s.Mode),
		"Enforce carries decisions out. Audit only reports them, by events, warnings, metrics and the log: nothing is refused, added, written or waited for. Off passes every Binding unseen.")
	fs.StringSliceVar(&s.Mutators, "mutators", s.Mutators,
		"Mutators to run. '*' stands for all that are on by default, 'foo' switches foo on, '-foo' off. The order is that of 'prebind plugins'.")
	fs.StringSliceVar(&s.PreBindPlugins, "prebind-plugins", s.PreBindPlugins, "PreBind plugins to run, in the same form.")
	fs.StringSliceVar(&s.RequiredMutators, "required-mutators", s.RequiredMutators,
		"Mutators without whose annotations no pod is bound. When one of them fails, or the node lacks what it is to tell of, the bind is refused; any other is left out.")
	for _, a := range s.Arguments {
		section := "PreBind plugins"
		if slices.ContainsFunc(s.registry.mutators, func(m mutators.Registration) bool { return m.Name == a.Name }) {
			section = "Mutators"
		}
		a.AddFlags(sets.FlagSet(section))
	}
	fs = sets.FlagSet("Waiting")
	fs.DurationVar(&s.Budgets.Hold, "hold", s.Budgets.Hold,
		"Maximum time a webhook call is held before Prebind answers 429. A hold always ends one second before the API server's own timeout (timeoutSeconds of the webhook configuration).")
	fs.IntVar(&s.Budgets.MaxHolds, "max-holds", s.Budgets.MaxHolds,
		"Maximum number of calls that this replica holds at a time. Each occupies a concurrency seat of the API server. The seats are shared between namespaces; other calls are answered 429 at once. Bindings that the FlowSchema prebind exempts occupy none: 16 times as many of them are held.")
	fs.DurationVar(&s.Budgets.PreBindTimeout, "prebind-timeout", s.Budgets.PreBindTimeout,
		"How long the PreBind of one pod on one node may take, over all its calls. The annotation binder.<domain>/timeout of the Binding or the pod sets another.")
	fs.DurationVar(&s.Budgets.MaxPreBindTimeout, "max-prebind-timeout", s.Budgets.MaxPreBindTimeout,
		"The most that the annotation binder.<domain>/timeout can ask for.")
}

// flagOf is the name of the flag of a field, such as max-holds of budgets.maxHolds
// and device-node-locks of arguments.device.nodeLocks.
func flagOf(field string) string {
	field = strings.TrimPrefix(field, "budgets.")
	if rest, ok := strings.CutPrefix(field, "arguments."); ok {
		field = strings.ReplaceAll(rest, ".", "-")
	}
	field, _, _ = strings.Cut(field, "[")
	var kebab strings.Builder
	for _, r := range field {
		if unicode.IsUpper(r) {
			kebab.WriteByte('-')
		}
		kebab.WriteRune(unicode.ToLower(r))
	}
	return kebab.String()
}

// usage returns the usage of the flag of each field.
func (s *settings) usage() v1alpha1.Usage {
	var sets cliflag.NamedFlagSets
	s.addFlags(&sets)
	usage := map[string]string{"namespaces": namespacesUsage}
	for _, fs := range sets.FlagSets {
		fs.VisitAll(func(f *pflag.Flag) { usage[f.Name] = f.Usage })
	}
	return func(field string) string {
		if strings.Contains(field, "[") {
			return "" // Elements of lists have no flag of their own.
		}
		return usage[flagOf(field)]
	}
}

const namespacesUsage = "What is different for the pods of some namespaces: rules with names (patterns such as team-* are fine) and one or more of mode, prebindTimeout and maxPrebindTimeout. The first rule that names a namespace counts, and it alone."

// selectedMutators returns the mutators that are on, in their order.
func (s *settings) selectedMutators() ([]mutators.Registration, error) {
	names, err := s.SelectedMutators()
	return slices.DeleteFunc(slices.Clone(s.registry.mutators), func(m mutators.Registration) bool { return !slices.Contains(names, m.Name) }), err
}

// selectedPlugins returns the PreBind plugins that are on, in their order.
func (s *settings) selectedPlugins() ([]framework.Registration, error) {
	names, err := s.SelectedPlugins()
	return slices.DeleteFunc(slices.Clone(s.registry.plugins), func(p framework.Registration) bool { return !slices.Contains(names, p.Name) }), err
}

// take sets each flag that was given on the command line, and that the settings
// have, to the value that it was given: flags win.
func (s *settings) take(given *pflag.FlagSet) error {
	var sets cliflag.NamedFlagSets
	s.addFlags(&sets)
	own := pflag.NewFlagSet("settings", pflag.ContinueOnError)
	for _, fs := range sets.FlagSets {
		own.AddFlagSet(fs)
	}
	var err error
	given.Visit(func(f *pflag.Flag) {
		to := own.Lookup(f.Name)
		if to == nil || err != nil {
			return
		}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			err = to.Value.(pflag.SliceValue).Replace(list.GetSlice()) //nolint:errcheck // It is the same flag.
			return
		}
		err = to.Value.Set(f.Value.String())
	})
	return err
}
