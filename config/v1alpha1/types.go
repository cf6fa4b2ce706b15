// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 defines the configuration of Prebind: types, flags, defaults, validation, and
// the JSON schema of the configuration file.
package v1alpha1

import (
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/prebind/prebind/registration"
)

// The header of every configuration file.
const (
	APIVersion = "config.prebind.dev/v1alpha1"
	Kind       = "PrebindConfiguration"
)

// Mode is the effect of Prebind's decisions.
type Mode string

const (
	// ModeEnforce applies the decisions.
	ModeEnforce Mode = "Enforce"
	// ModeAudit only reports the decisions: Prebind rejects, adds, writes and waits for nothing.
	ModeAudit Mode = "Audit"
	// ModeOff makes no decisions: every Binding passes.
	ModeOff Mode = "Off"
)

// Modes returns all modes. The caller owns the slice.
func Modes() []Mode { return []Mode{ModeEnforce, ModeAudit, ModeOff} }

// PrebindConfiguration contains the settings that can change while Prebind runs. Other settings,
// such as addresses, have only flags. The zero value is not valid; see Default.
type PrebindConfiguration struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	// Mode applies to namespaces without a mode in Namespaces.
	Mode Mode `yaml:"mode"`
	// Mutators and PreBindPlugins to run, in the order of their registration: "*" selects all
	// that are on by default, "x" switches x on, and "-x" switches it off.
	Mutators []string `yaml:"mutators"`
	// RequiredMutators must succeed. If one fails, Prebind rejects the Binding.
	RequiredMutators []string `yaml:"requiredMutators"`
	PreBindPlugins   []string `yaml:"prebindPlugins"`
	Budgets          Budgets  `yaml:"budgets"`
	// Namespaces contains rules for some namespaces. Only the first rule that matches a namespace
	// applies.
	Namespaces []NamespaceRule `yaml:"namespaces"`
	// Arguments of the mutators and plugins that have any.
	Arguments ArgumentsList `yaml:"arguments"`

	registered Registered
}

// Budgets limit the time and the seats of binds.
type Budgets struct {
	// Hold is the maximum time a webhook call is held before Prebind answers 429.
	Hold time.Duration `yaml:"hold"`
	// MaxHolds is the maximum number of calls that one replica holds at a time. Each
	// occupies a concurrency seat of the API server.
	MaxHolds int `yaml:"maxHolds"`
	// PreBindTimeout limits the preparation of one bind, over all its calls. An annotation
	// can set another time, up to MaxPreBindTimeout.
	PreBindTimeout    time.Duration `yaml:"prebindTimeout"`
	MaxPreBindTimeout time.Duration `yaml:"maxPrebindTimeout"`
}

// NamespaceRule overrides settings for the pods of some namespaces.
type NamespaceRule struct {
	// Names of the namespaces: literal, or patterns of path.Match such as team-*.
	Names []string `yaml:"names"`
	// Mode overrides the mode of the configuration. Empty means no override.
	Mode Mode `yaml:"mode"`
	// PreBindTimeout and MaxPreBindTimeout override those of the budgets. Zero means no override.
	PreBindTimeout    time.Duration `yaml:"prebindTimeout"`
	MaxPreBindTimeout time.Duration `yaml:"maxPrebindTimeout"`
}

// Default returns the configuration with all defaults, and with new arguments of all
// registered mutators and plugins.
func Default(r Registered) *PrebindConfiguration {
	c := &PrebindConfiguration{
		APIVersion: APIVersion, Kind: Kind,
		Mode: ModeEnforce, Mutators: []string{"*"}, PreBindPlugins: []string{"*"},
		Budgets: Budgets{
			Hold: 25 * time.Second, MaxHolds: 32, PreBindTimeout: 10 * time.Minute, MaxPreBindTimeout: 30 * time.Minute,
		},
		registered: r,
	}
	for _, list := range [][]Component{r.Mutators, r.Plugins} {
		for _, e := range list {
			if e.Arguments != nil {
				c.Arguments = append(c.Arguments, NamedArguments{Name: e.Name, Arguments: e.Arguments()})
			}
		}
	}
	return c
}

// Registered returns the argument of Default.
func (c *PrebindConfiguration) Registered() Registered { return c.registered }

// Registered are the mutators and PreBind plugins that a configuration can switch on, in
// the order in which they run.
type Registered struct{ Mutators, Plugins []Component }

// Component is a mutator or PreBind plugin.
type Component struct {
	Name string
	// On means that "*" includes it.
	On bool
	// Arguments returns new arguments with their defaults. Nil means no arguments.
	Arguments func() Arguments
}

// Arguments are the arguments of one mutator or plugin.
type Arguments = registration.Arguments

// Problem is the reason why a field is invalid.
type Problem = registration.Problem

// ArgumentsList contains the arguments of mutators and plugins. Names are unique. In the file, it is
// a map by name.
type ArgumentsList []NamedArguments

// NamedArguments are the arguments of one mutator or plugin.
type NamedArguments struct {
	Name string
	Arguments
}

// Of returns the arguments of a mutator or plugin, or nil if it has none.
func (l ArgumentsList) Of(name string) Arguments {
	for _, a := range l {
		if a.Name == name {
			return a.Arguments
		}
	}
	return nil
}

// MarshalYAML implements yaml.Marshaler: a map in the order of the list.
func (l ArgumentsList) MarshalYAML() (any, error) {
	all := &yaml.Node{Kind: yaml.MappingNode}
	for _, a := range l {
		value := &yaml.Node{}
		if err := value.Encode(a.Arguments); err != nil {
			return nil, err
		}
		all.Content = append(all.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: a.Name}, value)
	}
	return all, nil
}
