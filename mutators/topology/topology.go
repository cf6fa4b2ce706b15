// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package topology is the mutator that copies labels of the node to annotations
// topology.prebind.dev/<key> and, if configured, to labels of the pod.
//
// The labels and their keys are a list of entries:
//
//	example.com/rack           the key is rack, the part after the slash
//	example.com/rack=row       the key is row
//	example.com/net-*          every label with the prefix; the key of example.com/net-leaf
//	                           is net-leaf
//	example.com/net-*=n-*      the star in the key is the rest of the label: the key is n-leaf
//	*                          every label of the node
//
// An entry without a star has priority over entries with a star, both for its label and for its key.
// If entries with a star result in the same key for two labels of a node, the first label in sorted
// order has priority.
package topology

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/mutators/internal/keys"
)

// Name is the name of the mutator.
const Name = "topology"

// Registration returns the registry entry of the mutator.
func Registration() mutators.Registration {
	return mutators.Registration{
		Name:        Name,
		On:          true,
		Description: "labels of the node: zone, region, hostname, and those of --topology-labels; a path",
		Arguments:   func() v1alpha1.Arguments { return &Arguments{Labels: DefaultLabels()} },
		New: func(a v1alpha1.Arguments) (mutators.Mutator, error) {
			args, err := v1alpha1.ArgumentsAs[*Arguments](a)
			if err != nil {
				return nil, err
			}
			return New(args)
		},
	}
}

// Arguments are the arguments of the mutator.
type Arguments struct {
	// Labels are the node labels to copy. The package comment describes the entries. Two
	// entries without a star must not have the same key.
	Labels []string `json:"labels"`
	// Path are the node labels whose values, joined by '/', become the key "path". Label values
	// never contain '/'. If a label is missing or empty on the node, there is no path.
	Path []string `json:"path"`
	// PodLabels are the keys that also become labels of the pod, without prefix. "*" means
	// every key except path.
	PodLabels []string `json:"podLabels"`
	// ReplacePodLabels means that these labels replace existing values of the pod or the Binding.
	ReplacePodLabels bool `json:"replacePodLabels"`
}

// AddFlags implements v1alpha1.Arguments.
func (a *Arguments) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&a.Labels, "topology-labels", a.Labels,
		"Node labels that the mutator topology copies. Each entry is 'label', 'label=key', or a prefix such as 'example.com/net-*' or 'example.com/net-*=n-*'; '*' means every label. The default key is the part after the slash. Entries without a star win.")
	fs.StringSliceVar(&a.Path, "topology-path", a.Path,
		"Node labels from the widest to the narrowest. Their values, joined by '/', become the annotation topology.prebind.dev/path. A node that lacks one of them gets no path.")
	fs.StringSliceVar(&a.PodLabels, "topology-pod-labels", a.PodLabels,
		"Keys of --topology-labels that also become labels of the pod; '*' means all. Requires Kubernetes 1.35 or later.")
	fs.BoolVar(&a.ReplacePodLabels, "topology-replace-pod-labels", a.ReplacePodLabels,
		"Replace existing values of these labels on the pod or the Binding. By default, they are kept with a warning.")
}

// Validate implements v1alpha1.Arguments.
func (a *Arguments) Validate(path *field.Path) field.ErrorList {
	if _, invalid := a.build(path); invalid != nil {
		return field.ErrorList{invalid}
	}
	return nil
}

// pathKey is the key of the path.
const pathKey = "path"

// DefaultLabels returns the well-known topology labels.
func DefaultLabels() []string {
	return []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelHostname}
}

// Mutator copies node labels; see New.
type Mutator struct {
	// copies are the entries without a star, and prefixes those with one.
	copies   []keys.Copy
	prefixes []prefix
	path     []string
	// labels and short are the labels and keys of entries without a star and of the path.
	labels, short map[string]bool
	// pod are the keys that become labels of the pod. "*" means every key.
	pod     map[string]bool
	replace bool
}

// New returns the mutator, or an error if the arguments are invalid.
func New(a *Arguments) (*Mutator, error) {
	m, invalid := a.build(nil)
	if invalid != nil {
		return nil, invalid
	}
	return m, nil
}

// build returns the mutator, or an error about the first invalid field.
func (a *Arguments) build(path *field.Path) (*Mutator, *field.Error) {
	m := &Mutator{labels: map[string]bool{}, short: map[string]bool{}, pod: map[string]bool{}, replace: a.ReplacePodLabels}
	for _, f := range []struct {
		name   string
		values []string
		set    func([]string) error
	}{{"labels", a.Labels, m.setLabels}, {"path", a.Path, m.setPath}, {"podLabels", a.PodLabels, m.setPodLabels}} {
		if err := f.set(f.values); err != nil {
			return nil, field.Invalid(path.Child(f.name), strings.Join(f.values, ","), err.Error())
		}
	}
	return m, nil
}

func (m *Mutator) setLabels(entries []string) error {
	var plain []string
	for _, entry := range entries {
		if label, _, _ := strings.Cut(entry, "="); !strings.Contains(label, "*") {
			plain = append(plain, entry)
			continue
		}
		p, err := parsePrefix(entry)
		if err != nil {
			return err
		}
		if slices.Contains(m.prefixes, p) {
			return fmt.Errorf("duplicate entry %q: remove one", entry)
		}
		m.prefixes = append(m.prefixes, p)
	}
	var err error
	m.copies, err = keys.Parse(keys.Label, plain)
	for _, c := range m.copies {
		m.labels[c.From], m.short[c.Key] = true, true
	}
	return err
}

func (m *Mutator) setPath(labels []string) error {
	if len(labels) == 0 {
		return nil
	}
	for _, c := range m.copies {
		if c.Key == pathKey {
			return fmt.Errorf("node label %q has the key %q of the path: set another key, such as %s=other-key",
				c.From, pathKey, c.From)
		}
	}
	for i, label := range labels {
		if len(validation.IsQualifiedName(label)) > 0 {
			return fmt.Errorf("path: invalid label key %q: use node labels from the widest to the narrowest, such as %s",
				label, corev1.LabelTopologyZone)
		}
		if slices.Contains(labels[:i], label) {
			return fmt.Errorf("path: duplicate node label %q: remove one", label)
		}
	}
	m.path, m.short[pathKey] = labels, true
	return nil
}

func (m *Mutator) setPodLabels(wanted []string) error {
	for _, key := range wanted {
		switch {
		case key == pathKey && len(m.path) > 0:
			return fmt.Errorf("pod labels: %q cannot be a label, because its value contains '/': remove it", key)
		case key != "*" && !m.short[key] && (len(m.prefixes) == 0 || !keys.Valid(key)):
			return fmt.Errorf("pod labels: %q is not the key of a copied node label: use a key without prefix", key)
		default:
			m.pod[key] = true
		}
	}
	return nil
}

// Name implements mutators.Mutator.
func (*Mutator) Name() string { return Name }

// Mutate returns the configured labels of the node and its path. It omits missing labels and copies
// empty labels.
func (m *Mutator) Mutate(in mutators.Input) (mutators.Output, error) {
	labels := in.Node.Labels
	out := mutators.Output{Annotations: make(map[string]string, len(m.copies)+1), ReplaceLabels: m.replace}
	for _, c := range m.copies {
		if value, ok := labels[c.From]; ok {
			out.Annotations[c.Key] = value
		} else {
			out.Missing = append(out.Missing, "the node has no label "+c.From)
		}
	}
	if len(m.prefixes) > 0 {
		m.copyByPrefix(&out, labels)
	}
	if len(m.pod) > 0 {
		out.Labels = maps.Clone(out.Annotations)
		maps.DeleteFunc(out.Labels, func(key, _ string) bool { return !m.pod["*"] && !m.pod[key] })
	}
	if len(m.path) > 0 {
		m.addPath(&out, labels)
	}
	return out, nil
}

// copyByPrefix copies the labels that match entries with a star, in reverse order, so that the first of two labels with
// the same key has priority.
func (m *Mutator) copyByPrefix(out *mutators.Output, labels map[string]string) {
	var matching []string
	for label := range labels {
		matches := func(p prefix) bool { return strings.HasPrefix(label, p.begin) }
		if !m.labels[label] && slices.ContainsFunc(m.prefixes, matches) {
			matching = append(matching, label)
		}
	}
	slices.Sort(matching)
	for _, label := range slices.Backward(matching) {
		for i := range m.prefixes {
			if key, ok := m.prefixes[i].key(label); ok && !m.short[key] {
				out.Annotations[key] = labels[label]
			}
		}
	}
}

// addPath adds the path, or reports the missing labels.
func (m *Mutator) addPath(out *mutators.Output, labels map[string]string) {
	values := make([]string, 0, len(m.path))
	for _, label := range m.path {
		value, ok := labels[label]
		switch {
		case !ok:
			out.Missing = append(out.Missing, "the node has no label "+label+" for the path")
		case value == "":
			out.Missing = append(out.Missing, "the node's label "+label+" for the path is empty")
		default:
			values = append(values, value)
		}
	}
	if len(values) == len(m.path) {
		out.Annotations[pathKey] = strings.Join(values, "/")
	}
}
