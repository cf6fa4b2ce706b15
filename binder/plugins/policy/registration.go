// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/internal/tasks"
	"github.com/prebind/prebind/policy/v1alpha1"
)

// Name of the plugin.
const Name = "policy"

// Registration returns the plugin's entry in the registry.
func Registration() framework.Registration {
	m, changed := newMetrics(), make(signal, 1)
	return framework.Registration{
		Name:        Name,
		On:          true,
		Description: "applies BindPolicies: annotates, rejects and delays binds with CEL expressions, and runs their tasks",
		Arguments:   func() framework.Arguments { return &Arguments{} },
		Selections: func(string, framework.Arguments) []framework.Selection {
			handled := bindPolicies
			handled.Handler = changed.handler()
			counted := tasks.Selection
			counted.Handler = m.tasks.Handler()
			return []framework.Selection{handled, counted, *namespaces}
		},
		AddToScheme: v1alpha1.AddToScheme,
		Requires:    []schema.GroupVersionKind{v1alpha1.Kind, v1alpha1.TaskKind},
		Metrics:     append(m.tasks.Collectors(), m.results, m.policies),
		New: framework.Build(func(h framework.Handle, a *Arguments) (framework.Plugin, error) {
			return newPlugin(h, a, m, changed), nil
		}),
	}
}

// bindPolicies contains all BindPolicies.
var bindPolicies = framework.Selection{Name: Name + "/policies", Example: &v1alpha1.BindPolicy{}}

// namespaces contains all Namespaces. Its watch always runs, so that a policy that is not ready affects only the namespaces that it selects.
var namespaces = selectionOf(policy.Namespace)

// Arguments of the plugin.
type Arguments struct {
	// KeyPrefixes are the prefixes of annotations and labels that policies may set in addition to their own.
	KeyPrefixes []string `json:"keyPrefixes"`
}

// AddFlags implements framework.Arguments.
func (a *Arguments) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&a.KeyPrefixes, "policy-key-prefixes", a.KeyPrefixes,
		"Prefixes of keys, such as ray.io, or *.ray.io for all subdomains, that BindPolicies may set in addition to NAME.policy.prebind.dev. Prefixes of kubernetes.io, k8s.io and prebind.dev are never allowed.")
}

// Validate implements framework.Arguments.
func (a *Arguments) Validate(path *field.Path) field.ErrorList {
	var all field.ErrorList
	for i, prefix := range a.KeyPrefixes {
		if problem := policy.ValidateKeyPrefix(prefix); problem != "" {
			all = append(all, field.Invalid(path.Child("keyPrefixes").Index(i), prefix,
				"must be a DNS subdomain such as ray.io, or *.ray.io for its subdomains: "+problem))
		}
	}
	return all
}
