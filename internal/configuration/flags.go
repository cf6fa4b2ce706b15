// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package configuration

import (
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
)

// usageOfNamespaces describes the only field that has no flag.
const usageOfNamespaces = "Overrides for the pods of some namespaces. A rule has names (namespaces, or patterns such as team-*) and one or more of mode, prebindTimeout, maxPrebindTimeout and rejectAfter. After rejectAfter, a bind that has to wait is rejected with 403, and continues with the next call. The first rule that matches a namespace applies, and no other."

// AddFlags adds a flag for every field except Namespaces. Each flag is bound to its field and is in a section of sets.
func (c *PrebindConfiguration) AddFlags(sets *cliflag.NamedFlagSets) {
	fs := sets.FlagSet("Mutators and plugins")
	fs.StringVar((*string)(&c.Mode), "mode", string(c.Mode),
		"Effect of decisions. Enforce applies them. Audit only reports them, as events, warnings, metrics and log entries. Off lets every Binding pass.")
	fs.StringSliceVar(&c.Mutators, "mutators", c.Mutators,
		"Mutators to run. '*' selects all that are on by default, 'foo' switches foo on, and '-foo' switches it off. They run in the order of 'prebind plugins'.")
	fs.StringSliceVar(&c.PreBindPlugins, "prebind-plugins", c.PreBindPlugins, "PreBind plugins to run, in the format of --mutators.")
	fs.StringSliceVar(&c.RequiredMutators, "required-mutators", c.RequiredMutators,
		"Mutators without which Prebind rejects the Binding, also if the node lacks a value. Other mutators that fail are skipped.")
	for _, a := range c.Arguments {
		section := "PreBind plugins"
		if slices.Contains(mutatorNames(c.registry.Mutators), a.Name) {
			section = "Mutators"
		}
		a.AddFlags(sets.FlagSet(section))
	}
	fs = sets.FlagSet("Waiting")
	fs.DurationVar(&c.Budgets.Hold.Duration, "hold", c.Budgets.Hold.Duration,
		"Maximum time a webhook call is held before Prebind answers 429. A hold always ends one second before timeoutSeconds of the webhook configuration.")
	fs.IntVar(&c.Budgets.MaxHolds, "max-holds", c.Budgets.MaxHolds,
		"Maximum number of calls that this replica holds at a time. The maximum is 256. Each occupies a concurrency seat of the API server. Further calls get 429. Of users that the FlowSchema prebind exempts, Prebind holds 512 more.")
	fs.DurationVar(&c.Budgets.PreBindTimeout.Duration, "prebind-timeout", c.Budgets.PreBindTimeout.Duration,
		"Maximum time of a bind, over all webhook calls. The annotation binder.prebind.dev/timeout overrides it.")
	fs.DurationVar(&c.Budgets.MaxPreBindTimeout.Duration, "max-prebind-timeout", c.Budgets.MaxPreBindTimeout.Duration,
		"Maximum value of the annotation binder.prebind.dev/timeout.")
}

// ownFlags returns new flags that are bound to the configuration.
func (c *PrebindConfiguration) ownFlags() *pflag.FlagSet {
	var sets cliflag.NamedFlagSets
	c.AddFlags(&sets)
	own := pflag.NewFlagSet("configuration", pflag.ContinueOnError)
	for _, fs := range sets.FlagSets {
		own.AddFlagSet(fs)
	}
	return own
}

// apply sets each field whose flag is set on the command line. Flags override the file.
func (c *PrebindConfiguration) apply(given *pflag.FlagSet) error {
	own := c.ownFlags()
	var err error
	given.Visit(func(f *pflag.Flag) {
		to := own.Lookup(f.Name)
		if to == nil || err != nil {
			return
		}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			err = to.Value.(pflag.SliceValue).Replace(list.GetSlice()) //nolint:errcheck // Both flags have the same type.
			return
		}
		err = to.Value.Set(f.Value.String())
	})
	return err
}

var capital = regexp.MustCompile("[A-Z]")

// flagOf returns the name of the flag of a field, such as max-holds for budgets.maxHolds and
// device-node-locks for arguments.device.nodeLocks.
func flagOf(field string) string {
	field = strings.TrimPrefix(field, "budgets.")
	if rest, ok := strings.CutPrefix(field, "arguments."); ok {
		field = strings.ReplaceAll(rest, ".", "-")
	}
	field, _, _ = strings.Cut(field, "[")
	return capital.ReplaceAllStringFunc(field, func(c string) string { return "-" + strings.ToLower(c) })
}

// usage returns the description of a field such as budgets.hold, which is that of its own flag. It is empty for fields without a flag, such
// as elements of lists.
func usage(own *pflag.FlagSet, field string) string {
	if field == "namespaces" {
		return usageOfNamespaces
	}
	if f := own.Lookup(flagOf(field)); f != nil && !strings.Contains(field, "[") {
		return f.Usage
	}
	return ""
}
