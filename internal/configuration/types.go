// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package configuration defines the configuration of Prebind: types, flags, defaults, validation, and the JSON schema of the
// configuration file.
package configuration

import (
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/config/v1alpha1"
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
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Mode applies to namespaces without a mode in Namespaces.
	Mode Mode `json:"mode"`
	// Mutators and PreBindPlugins to run, in the order of their registration: "*" selects all
	// that are on by default, "x" switches x on, and "-x" switches it off.
	Mutators []string `json:"mutators"`
	// RequiredMutators must succeed. If one fails, Prebind rejects the Binding.
	RequiredMutators []string `json:"requiredMutators"`
	PreBindPlugins   []string `json:"prebindPlugins"`
	Budgets          Budgets  `json:"budgets"`
	// Namespaces contains rules for some namespaces. Only the first rule that matches a namespace
	// applies.
	Namespaces []NamespaceRule `json:"namespaces"`
	// Arguments of the mutators and plugins that have any.
	Arguments ArgumentsList `json:"arguments"`

	// Hash is the same for equal configurations of one version of Prebind. Only Load sets it.
	Hash string `json:"-"`

	registry *Registry
}

// Budgets limit the time and the seats of binds.
type Budgets struct {
	// Hold is the maximum time a webhook call is held before Prebind answers 429. Less than 2 s counts as 2 s.
	Hold metav1.Duration `json:"hold"`
	// MaxHolds is the maximum number of calls that one replica holds at a time, at most 256. Each
	// occupies a concurrency seat of the API server.
	MaxHolds int `json:"maxHolds"`
	// PreBindTimeout limits the preparation of one bind, over all its calls. An annotation
	// can set another time, up to MaxPreBindTimeout.
	PreBindTimeout    metav1.Duration `json:"prebindTimeout"`
	MaxPreBindTimeout metav1.Duration `json:"maxPrebindTimeout"`
}

// NamespaceRule overrides settings for the pods of some namespaces.
type NamespaceRule struct {
	// Names of the namespaces: literal, or patterns of path.Match such as team-*.
	Names []string `json:"names"`
	// Mode overrides the mode of the configuration. Empty means no override.
	Mode Mode `json:"mode"`
	// PreBindTimeout and MaxPreBindTimeout override those of the budgets. Zero means no override.
	PreBindTimeout    metav1.Duration `json:"prebindTimeout"`
	MaxPreBindTimeout metav1.Duration `json:"maxPrebindTimeout"`
	// RejectAfter is the time after which a call that has to wait is rejected instead of answered with 429, for schedulers that bind
	// no other pod while a Binding waits. The bind continues with the next call. Less than 2 s counts as 2 s. Zero means never.
	RejectAfter metav1.Duration `json:"rejectAfter"`
}

// Default returns the configuration with all defaults, and with new arguments of all
// registered mutators and plugins.
func Default(r *Registry) *PrebindConfiguration {
	c := &PrebindConfiguration{
		APIVersion: APIVersion, Kind: Kind,
		Mode: ModeEnforce, Mutators: []string{"*"}, PreBindPlugins: []string{"*"},
		Budgets: Budgets{
			Hold: metav1.Duration{Duration: 25 * time.Second}, MaxHolds: 32,
			PreBindTimeout: metav1.Duration{Duration: 10 * time.Minute}, MaxPreBindTimeout: metav1.Duration{Duration: 30 * time.Minute},
		},
		registry: r,
	}
	add := func(name string, arguments func() v1alpha1.Arguments) {
		if arguments != nil {
			c.Arguments = append(c.Arguments, NamedArguments{Name: name, Arguments: arguments()})
		}
	}
	for _, m := range r.Mutators {
		add(m.Name, m.Arguments)
	}
	for _, p := range r.Plugins {
		add(p.Name, p.Arguments)
	}
	return c
}

// ArgumentsList contains the arguments of mutators and plugins. Names are unique. In the file, it is
// a map by name.
type ArgumentsList []NamedArguments

// NamedArguments are the arguments of one mutator or plugin.
type NamedArguments struct {
	Name string
	v1alpha1.Arguments
}

// Of returns the arguments of a mutator or plugin, or nil if it has none.
func (l ArgumentsList) Of(name string) v1alpha1.Arguments {
	for _, a := range l {
		if a.Name == name {
			return a.Arguments
		}
	}
	return nil
}

// MarshalJSON implements json.Marshaler: a map in the order of the list.
func (l ArgumentsList) MarshalJSON() ([]byte, error) { return json.Marshal(l.object()) }

// object returns a pointer to a struct with a field for the arguments of each mutator or plugin.
func (l ArgumentsList) object() any {
	fields := make([]reflect.StructField, len(l))
	for i, a := range l {
		fields[i] = reflect.StructField{
			Name: fmt.Sprint("Of", i), Type: reflect.TypeOf(a.Arguments), Tag: reflect.StructTag(fmt.Sprintf("json:%q", a.Name)),
		}
	}
	object := reflect.New(reflect.StructOf(fields))
	for i, a := range l {
		object.Elem().Field(i).Set(reflect.ValueOf(a.Arguments))
	}
	return object.Interface()
}

// UnmarshalJSON implements json.Unmarshaler. YAML 1.1 tools such as Helm convert the bare word Off to false.
func (m *Mode) UnmarshalJSON(encoded []byte) error {
	if string(encoded) == "false" {
		*m = ModeOff
		return nil
	}
	return json.Unmarshal(encoded, (*string)(m))
}
