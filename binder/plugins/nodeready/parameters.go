// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeready

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/internal/nodecondition"
)

// The names of the checks, in the order in which messages list what is missing.
const (
	checkDrivers    = "csi-drivers"
	checkLimits     = "attach-limits"
	checkAgents     = "agents"
	checkConditions = "conditions"
	checkResources  = "extended-resources"
)

// Checks returns the names of all checks. The caller owns the slice.
func Checks() []string {
	return []string{checkDrivers, checkLimits, checkAgents, checkConditions, checkResources}
}

// Arguments of the plugin.
type Arguments struct {
	// Checks are the names of the checks that are on.
	Checks []string `json:"checks"`
	// Agents must be Ready on the node.
	Agents []Agent `json:"agents"`
	// Conditions of the node that must hold, each as Type=Status, or as Type for Type=True.
	Conditions []string `json:"conditions"`
	// PassNamespaces are the namespaces whose pods do not wait.
	PassNamespaces []string `json:"passNamespaces"`
	// Timeout limits the wait of a bind. The annotation timeout sets another limit, up to MaxTimeout.
	Timeout    metav1.Duration `json:"timeout"`
	MaxTimeout metav1.Duration `json:"maxTimeout"`
}

// Agent selects the pods of DaemonSets.
type Agent struct {
	// Namespace of the DaemonSets.
	Namespace string `json:"namespace"`
	// Selector is a label selector for the pods.
	Selector string `json:"selector"`
	// NodeSelector is a label selector for the nodes that need the agent. Empty means all nodes on which
	// the DaemonSet runs.
	NodeSelector string `json:"nodeSelector,omitempty"`
}

func defaults() *Arguments {
	return &Arguments{Checks: Checks(), PassNamespaces: []string{"kube-system"},
		Timeout: metav1.Duration{Duration: 2 * time.Minute}, MaxTimeout: metav1.Duration{Duration: 10 * time.Minute},
	}
}

// AddFlags implements framework.Arguments.
func (a *Arguments) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&a.Checks, "node-ready-checks", a.Checks, "Checks that the plugin node-ready makes for every bind.")
	fs.Var(&agentsFlag{list: &a.Agents}, "node-ready-agents",
		"Agents that must be Ready on the node. In the configuration file, each has namespace, selector, and optionally nodeSelector. As a flag, each is NAMESPACE/SELECTOR or NAMESPACE/SELECTOR@NODE-SELECTOR; repeat the flag for more agents. The selectors are label selectors for the pods of the agent's DaemonSet and for the nodes that need it.")
	fs.StringSliceVar(&a.Conditions, "node-ready-conditions", a.Conditions,
		"Node conditions that must hold, each as TYPE=STATUS, or as TYPE for TYPE=True.")
	fs.StringSliceVar(&a.PassNamespaces, "node-ready-pass-namespaces", a.PassNamespaces,
		"Namespaces whose pods do not wait, in addition to the namespaces of agents.")
	fs.DurationVar(&a.Timeout.Duration, "node-ready-timeout", a.Timeout.Duration,
		"Maximum time that a bind waits for its node before Prebind rejects it.")
	fs.DurationVar(&a.MaxTimeout.Duration, "node-ready-max-timeout", a.MaxTimeout.Duration, "Maximum value of the annotation node-ready.prebind.dev/timeout.")
}

// LongestWait returns the wait that budgets.maxPrebindTimeout limits, and the wait's field.
func (a *Arguments) LongestWait() (name string, wait metav1.Duration) {
	return "maxTimeout", a.MaxTimeout
}

// Validate implements framework.Arguments.
func (a *Arguments) Validate(path *field.Path) field.ErrorList {
	_, all := a.parse(path)
	return all
}

func (a *Arguments) has(check string) bool { return slices.Contains(a.Checks, check) }

// parse returns the plugin, or the errors of the invalid fields.
func (a *Arguments) parse(path *field.Path) (*plugin, field.ErrorList) {
	p := &plugin{Arguments: a, pass: sets.New(a.PassNamespaces...)}
	all := slices.Concat(v1alpha1.Positive(path.Child("timeout"), a.Timeout), v1alpha1.Positive(path.Child("maxTimeout"), a.MaxTimeout))
	if a.MaxTimeout.Duration < a.Timeout.Duration {
		all = append(all, field.Invalid(path.Child("maxTimeout"), a.MaxTimeout, fmt.Sprintf("must be at least timeout (%s)", a.Timeout.Duration)))
	}
	check := func(valid bool, at *field.Path, value, detail string) {
		if !valid {
			all = append(all, field.Invalid(at, value, detail))
		}
	}
	for i, name := range a.Checks {
		if !slices.Contains(Checks(), name) {
			all = append(all, field.NotSupported(path.Child("checks").Index(i), name, Checks()))
		}
	}
	for i, namespace := range a.PassNamespaces {
		check(isNamespace(namespace), path.Child("passNamespaces").Index(i), namespace, "must be the name of a namespace")
	}
	for i, given := range a.Conditions {
		one, err := nodecondition.Parse(given)
		check(err == nil && len(one) == 1 && !one[0].Not, path.Child("conditions").Index(i), given, "must be Type, Type=True, Type=False, or Type=Unknown")
		p.conditions = append(p.conditions, one...)
	}
	for i, given := range a.Agents {
		at := path.Child("agents").Index(i)
		check(isNamespace(given.Namespace), at.Child("namespace"), given.Namespace, "must be the name of a namespace")
		pods, err := labels.Parse(given.Selector)
		check(err == nil && !pods.Empty(), at.Child("selector"), given.Selector, "must be a label selector for the pods of the agent")
		nodes, err := labels.Parse(given.NodeSelector)
		check(err == nil, at.Child("nodeSelector"), given.NodeSelector, "must be a label selector")
		p.agents = append(p.agents, &agent{namespace: given.Namespace, podsSelector: pods, nodesSelector: nodes})
		p.pass.Insert(given.Namespace)
	}
	return p, all
}

func isNamespace(name string) bool { return len(validation.IsDNS1123Label(name)) == 0 }

// agentsFlag is the flag for Arguments.Agents. The first value replaces the default. String separates agents by
// semicolons, which no selector contains.
type agentsFlag struct {
	list    *[]Agent
	changed bool
}

var _ pflag.Value = (*agentsFlag)(nil)

// Set implements pflag.Value.
func (f *agentsFlag) Set(text string) error {
	if !f.changed {
		f.changed, *f.list = true, nil
	}
	for one := range strings.SplitSeq(text, ";") {
		namespace, rest, ok := strings.Cut(one, "/")
		if !ok {
			return fmt.Errorf("must be NAMESPACE/SELECTOR or NAMESPACE/SELECTOR@NODE-SELECTOR, got %q", one)
		}
		selector, nodes, _ := strings.Cut(rest, "@")
		*f.list = append(*f.list, Agent{Namespace: namespace, Selector: selector, NodeSelector: nodes})
	}
	return nil
}

// String implements pflag.Value.
func (f *agentsFlag) String() string {
	var all []string
	for _, a := range *f.list {
		text := a.Namespace + "/" + a.Selector
		if a.NodeSelector != "" {
			text += "@" + a.NodeSelector
		}
		all = append(all, text)
	}
	return strings.Join(all, ";")
}

// Type implements pflag.Value.
func (*agentsFlag) Type() string { return "agents" }
