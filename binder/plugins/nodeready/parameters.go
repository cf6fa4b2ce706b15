// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeready

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/prebind/prebind/binder/framework"
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
	Checks []string `yaml:"checks"`
	// Agents must be Ready on the node.
	Agents []Agent `yaml:"agents"`
	// Conditions of the node that must hold, each as Type=Status, or as Type for Type=True.
	Conditions []string `yaml:"conditions"`
	// PassNamespaces are the namespaces whose pods do not wait.
	PassNamespaces []string `yaml:"passNamespaces"`
	// Timeout limits the wait of a bind. The annotation timeout sets another limit, up to MaxTimeout.
	Timeout    time.Duration `yaml:"timeout"`
	MaxTimeout time.Duration `yaml:"maxTimeout"`
}

// Agent selects the pods of DaemonSets.
type Agent struct {
	// Namespace of the DaemonSets.
	Namespace string `yaml:"namespace"`
	// Selector is a label selector for the pods.
	Selector string `yaml:"selector"`
	// NodeSelector is a label selector for the nodes that need the agent. Empty means all nodes on which
	// the DaemonSet runs.
	NodeSelector string `yaml:"nodeSelector,omitempty"`
}

func defaults() *Arguments {
	return &Arguments{Checks: Checks(), PassNamespaces: []string{"kube-system"}, Timeout: 2 * time.Minute, MaxTimeout: 10 * time.Minute}
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
	fs.DurationVar(&a.Timeout, "node-ready-timeout", a.Timeout,
		"Maximum time that a bind waits for its node before Prebind rejects it.")
	fs.DurationVar(&a.MaxTimeout, "node-ready-max-timeout", a.MaxTimeout, "Maximum value of the annotation node-ready.prebind.dev/timeout.")
}

// LongestWait returns the wait that budgets.maxPrebindTimeout limits, and the wait's field.
func (a *Arguments) LongestWait() (field string, wait time.Duration) {
	return "maxTimeout", a.MaxTimeout
}

// Validate implements framework.Arguments.
func (a *Arguments) Validate() []framework.Problem {
	_, problems := a.parse()
	return problems
}

func (a *Arguments) has(check string) bool { return slices.Contains(a.Checks, check) }

// rules are the parsed Arguments.
type rules struct {
	checks     sets.Set[string]
	agents     []*agent
	conditions []condition
	// pass are the namespaces whose pods pass: PassNamespaces and those of the agents.
	pass sets.Set[string]
}

// condition is an expected status of a node condition.
type condition struct {
	kind   corev1.NodeConditionType
	status corev1.ConditionStatus
}

// parse returns the rules, or the problems of the invalid fields.
func (a *Arguments) parse() (rules, []framework.Problem) {
	r := rules{checks: sets.New(a.Checks...), pass: sets.New(a.PassNamespaces...)}
	problems := slices.Concat(framework.Positive("timeout", a.Timeout), framework.Positive("maxTimeout", a.MaxTimeout))
	if a.MaxTimeout < a.Timeout {
		problems = append(problems, framework.FieldProblem("maxTimeout", fmt.Errorf("must be at least timeout (%s), got %s", a.Timeout, a.MaxTimeout))...)
	}
	check := func(field string, err error) { problems = append(problems, framework.FieldProblem(field, err)...) }
	for i, name := range a.Checks {
		if !slices.Contains(Checks(), name) {
			check(fmt.Sprintf("checks[%d]", i), fmt.Errorf("unknown check %q, must be one of: %s", name, strings.Join(Checks(), ", ")))
		}
	}
	for i, namespace := range a.PassNamespaces {
		check(fmt.Sprintf("passNamespaces[%d]", i), checkNamespace(namespace))
	}
	for i, given := range a.Conditions {
		c, err := parseCondition(given)
		check(fmt.Sprintf("conditions[%d]", i), err)
		r.conditions = append(r.conditions, c)
	}
	for i, given := range a.Agents {
		field := fmt.Sprintf("agents[%d].", i)
		check(field+"namespace", checkNamespace(given.Namespace))
		pods, err := parseSelector(given.Selector)
		if given.Selector == "" {
			err = errors.New("must select the pods of the agent, got an empty selector")
		}
		check(field+"selector", err)
		nodes, err := parseSelector(given.NodeSelector)
		check(field+"nodeSelector", err)
		r.agents = append(r.agents, newAgent(given.Namespace, pods, nodes))
		r.pass.Insert(given.Namespace)
	}
	return r, problems
}

func checkNamespace(name string) error {
	if len(validation.IsDNS1123Label(name)) > 0 {
		return fmt.Errorf("must be the name of a namespace, got %q", name)
	}
	return nil
}

// parseSelector returns a selector even with an error.
func parseSelector(text string) (labels.Selector, error) {
	s, err := labels.Parse(text)
	if err != nil {
		return labels.Nothing(), fmt.Errorf("must be a label selector, got %q: %s", text, strings.Join(strings.Fields(err.Error()), " "))
	}
	return s, nil
}

func parseCondition(text string) (condition, error) {
	kind, status, given := strings.Cut(text, "=")
	if !given {
		status = string(corev1.ConditionTrue)
	}
	c := condition{kind: corev1.NodeConditionType(kind), status: corev1.ConditionStatus(status)}
	known := []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown}
	if len(content.IsLabelKey(kind)) > 0 || !slices.Contains(known, c.status) {
		return c, fmt.Errorf("must be Type, Type=True, Type=False, or Type=Unknown, got %q", text)
	}
	return c, nil
}

// agentsFlag is the flag for Arguments.Agents. The first value replaces the default.
type agentsFlag struct {
	list    *[]Agent
	changed bool
}

var (
	_ pflag.Value      = (*agentsFlag)(nil)
	_ pflag.SliceValue = (*agentsFlag)(nil)
)

// Set implements pflag.Value.
func (f *agentsFlag) Set(text string) error {
	if !f.changed {
		f.changed, *f.list = true, nil
	}
	return f.Append(text)
}

// Append implements pflag.SliceValue.
func (f *agentsFlag) Append(text string) error {
	namespace, rest, ok := strings.Cut(text, "/")
	if !ok {
		return fmt.Errorf("must be NAMESPACE/SELECTOR or NAMESPACE/SELECTOR@NODE-SELECTOR, got %q", text)
	}
	selector, nodes, _ := strings.Cut(rest, "@")
	*f.list = append(*f.list, Agent{Namespace: namespace, Selector: selector, NodeSelector: nodes})
	return nil
}

// Replace implements pflag.SliceValue.
func (f *agentsFlag) Replace(all []string) error {
	*f.list = nil
	for _, text := range all {
		if err := f.Append(text); err != nil {
			return err
		}
	}
	return nil
}

// GetSlice implements pflag.SliceValue.
func (f *agentsFlag) GetSlice() []string {
	var all []string
	for _, a := range *f.list {
		text := a.Namespace + "/" + a.Selector
		if a.NodeSelector != "" {
			text += "@" + a.NodeSelector
		}
		all = append(all, text)
	}
	return all
}

// String implements pflag.Value.
func (f *agentsFlag) String() string {
	if f.list == nil {
		return ""
	}
	return strings.Join(f.GetSlice(), " ")
}

// Type implements pflag.Value.
func (*agentsFlag) Type() string { return "agents" }
