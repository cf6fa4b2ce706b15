// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/plugins/nodestate"
	"github.com/prebind/prebind/mutators"
)

// settings are those options that the configuration file may give as well, and that
// may change while Prebind runs. What a process is bound to from its start, such as
// addresses, is told by flags only.
type settings struct {
	general
	// arguments are those of the registered mutators and plugins that have any, in
	// the registry's order.
	arguments []named
	registry  *registry
}

// named are the arguments of one mutator or plugin.
type named struct {
	name string
	Arguments
	// section is that of its flags.
	section string
}

// general is what is no plugin's own.
type general struct {
	Mode             binder.Mode     `yaml:"mode"`
	Mutators         []string        `yaml:"mutators"`
	RequiredMutators []string        `yaml:"requiredMutators"`
	PreBindPlugins   []string        `yaml:"prebindPlugins"`
	Budgets          budgets         `yaml:"budgets"`
	Namespaces       []namespaceRule `yaml:"namespaces"`
}

// budgets bound what binds may take.
type budgets struct {
	Hold              time.Duration `yaml:"hold"`
	MaxHolds          int           `yaml:"maxHolds"`
	PreBindTimeout    time.Duration `yaml:"prebindTimeout"`
	MaxPreBindTimeout time.Duration `yaml:"maxPrebindTimeout"`
}

// namespaceRule is a binder.NamespaceRule in the file.
type namespaceRule struct {
	Names             []string      `yaml:"names"`
	Mode              binder.Mode   `yaml:"mode"`
	PreBindTimeout    time.Duration `yaml:"prebindTimeout"`
	MaxPreBindTimeout time.Duration `yaml:"maxPrebindTimeout"`
}

// defaultSettings are those of the registry's entries.
func defaultSettings(r *registry) *settings {
	s := &settings{
		registry: r,
		general: general{
			Mode:           binder.ModeEnforce,
			Mutators:       []string{"*"},
			PreBindPlugins: []string{"*"},
			Budgets: budgets{
				Hold:              28 * time.Second,
				MaxHolds:          32,
				PreBindTimeout:    10 * time.Minute,
				MaxPreBindTimeout: 30 * time.Minute,
			},
		},
	}
	for _, m := range r.mutators {
		if m.Arguments != nil {
			s.arguments = append(s.arguments, named{name: m.Name, Arguments: m.Arguments(), section: "Mutators"})
		}
	}
	for _, p := range r.plugins {
		if p.Arguments != nil {
			s.arguments = append(s.arguments, named{name: p.Name, Arguments: p.Arguments(), section: "PreBind plugins"})
		}
	}
	return s
}

// argumentsOf returns the arguments of a mutator or plugin; nil if it has none.
func (s *settings) argumentsOf(name string) Arguments {
	for _, a := range s.arguments {
		if a.name == name {
			return a.Arguments
		}
	}
	return nil
}

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
	for _, a := range s.arguments {
		a.AddFlags(sets.FlagSet(a.section))
	}
	fs = sets.FlagSet("Waiting")
	fs.DurationVar(&s.Budgets.Hold, "hold", s.Budgets.Hold,
		"Maximum time a webhook call is held before Prebind answers 429. A hold always ends one second before the API server's own timeout (timeoutSeconds of the webhook configuration).")
	fs.IntVar(&s.Budgets.MaxHolds, "max-holds", s.Budgets.MaxHolds,
		"Maximum number of calls that this replica holds at a time. Each occupies a concurrency seat of the API server. The seats are shared between namespaces; other calls are answered 429 at once. Bindings that the FlowSchema prebind exempts occupy none: 32 times as many of them are held.")
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

// problems are all that is wrong with the settings, by field.
func (s *settings) problems() []Problem {
	var all []Problem
	check := func(ok bool, field, format string, args ...any) {
		if !ok {
			all = append(all, Problem{Field: field, Err: fmt.Errorf(format, args...)})
		}
	}
	b := s.Budgets
	check(knownMode(s.Mode), "mode", "there is no mode %q: %s", s.Mode, modeNames())
	check(b.Hold > 0, "budgets.hold", "%s is not positive", b.Hold)
	check(b.MaxHolds > 0, "budgets.maxHolds", "%d is not positive", b.MaxHolds)
	check(b.PreBindTimeout > 0, "budgets.prebindTimeout", "%s is not positive", b.PreBindTimeout)
	check(b.MaxPreBindTimeout >= b.PreBindTimeout, "budgets.maxPrebindTimeout", "%s is less than --prebind-timeout, %s", b.MaxPreBindTimeout, b.PreBindTimeout)
	chosen, err := s.selectedMutators()
	check(err == nil, "mutators", "%w", err)
	if err == nil {
		for i, name := range s.RequiredMutators {
			isOn := slices.ContainsFunc(chosen, func(m mutators.Registration) bool { return m.Name == name })
			check(isOn, fmt.Sprintf("requiredMutators[%d]", i), "%q is no mutator that is switched on", name)
		}
	}
	_, err = s.selectedPlugins()
	check(err == nil, "prebindPlugins", "%w", err)
	for i, r := range s.Namespaces {
		all = append(all, r.problems(fmt.Sprintf("namespaces[%d]", i))...)
	}
	for _, a := range s.arguments {
		for _, p := range a.Validate() {
			all = append(all, Problem{Field: "arguments." + a.name + "." + p.Field, Err: p.Err})
		}
		if n, ok := a.Arguments.(*nodestate.Arguments); ok {
			check(n.MaxWait <= b.MaxPreBindTimeout, "arguments.node-state.maxWait", "%s is more than --max-prebind-timeout, %s", n.MaxWait, b.MaxPreBindTimeout)
		}
	}
	return all
}

// problems are all that is wrong with the rule, which is the field.
func (r namespaceRule) problems(field string) []Problem {
	var all []Problem
	check := func(ok bool, name, format string, args ...any) {
		if !ok {
			all = append(all, Problem{Field: field + name, Err: fmt.Errorf(format, args...)})
		}
	}
	check(len(r.Names) > 0, "", "it has no names: it says nothing of any namespace")
	check(r.Mode != "" || r.PreBindTimeout != 0 || r.MaxPreBindTimeout != 0, "", "nothing is different in it: give a mode, a prebindTimeout or a maxPrebindTimeout")
	for i, name := range r.Names {
		_, err := path.Match(name, "")
		check(err == nil && name != "", fmt.Sprintf(".names[%d]", i), "%q is no name or pattern of namespaces", name)
	}
	check(r.Mode == "" || knownMode(r.Mode), ".mode", "there is no mode %q: %s", r.Mode, modeNames())
	check(r.PreBindTimeout >= 0, ".prebindTimeout", "%s is negative", r.PreBindTimeout)
	check(r.MaxPreBindTimeout >= 0, ".maxPrebindTimeout", "%s is negative", r.MaxPreBindTimeout)
	check(r.MaxPreBindTimeout == 0 || r.MaxPreBindTimeout >= r.PreBindTimeout, ".maxPrebindTimeout", "%s is less than prebindTimeout, %s", r.MaxPreBindTimeout, r.PreBindTimeout)
	return all
}

func knownMode(m binder.Mode) bool { return slices.Contains(binder.Modes(), m) }

func modeNames() string {
	var names []string
	for _, m := range binder.Modes() {
		names = append(names, string(m))
	}
	return "the known ones are " + strings.Join(names, ", ")
}

func (s *settings) selectedMutators() ([]mutators.Registration, error) {
	return selected(s.registry.mutators, mutatorEntry, "mutator", s.Mutators)
}

func (s *settings) selectedPlugins() ([]framework.Registration, error) {
	return selected(s.registry.plugins, pluginEntry, "PreBind plugin", s.PreBindPlugins)
}

// namespaceRules are those of the engine.
func (s *settings) namespaceRules() []binder.NamespaceRule {
	var rules []binder.NamespaceRule
	for _, r := range s.Namespaces {
		rules = append(rules, binder.NamespaceRule{
			Names: r.Names, Mode: r.Mode, PreBindTimeout: r.PreBindTimeout, MaxPreBindTimeout: r.MaxPreBindTimeout,
		})
	}
	return rules
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
