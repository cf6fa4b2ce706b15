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

	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/mutators/internal/keys"
)

// Name is the name of the mutator.
const Name = "topology"

// pathKey is the key of the path.
const pathKey = "path"

// DefaultLabels returns the well-known topology labels.
func DefaultLabels() []string {
	return []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelHostname}
}

// Mutator copies node labels; see New.
type Mutator struct {
	copies   []labelCopy
	prefixes []prefix
	path     []step
	// labels and short are the labels and keys of entries without a star and of the path.
	labels, short map[string]bool
	pod           podLabels
	replace       bool
}

// labelCopy is an entry without a star.
type labelCopy struct {
	keys.Copy
	// missing is the entry of Output.Missing, built in advance.
	missing string
	// pod means that the key also becomes a label of the pod.
	pod bool
}

// step is one label of the path.
type step struct{ label, missing, empty string }

// podLabels are the keys that become labels of the pod.
type podLabels struct {
	all  bool
	keys map[string]bool
}

func (p podLabels) has(key string) bool { return p.all || p.keys[key] }

var _ mutators.Mutator = (*Mutator)(nil)

// New returns the mutator, or an error if the arguments are invalid.
func New(a *Arguments) (*Mutator, error) {
	m := &Mutator{labels: map[string]bool{}, short: map[string]bool{}, replace: a.ReplacePodLabels}
	var plain []string
	for _, entry := range a.Labels {
		if label, _, _ := strings.Cut(entry, "="); !strings.Contains(label, "*") {
			plain = append(plain, entry)
			continue
		}
		p, err := parsePrefix(entry)
		if err != nil {
			return nil, err
		}
		if slices.Contains(m.prefixes, p) {
			return nil, fmt.Errorf("duplicate entry %q: remove one", entry)
		}
		m.prefixes = append(m.prefixes, p)
	}
	copies, err := keys.Parse(keys.Label, plain)
	if err != nil {
		return nil, err
	}
	for _, c := range copies {
		m.copies = append(m.copies, labelCopy{Copy: c, missing: "the node has no label " + c.From})
		m.labels[c.From], m.short[c.Key] = true, true
	}
	if err := m.setPath(a.Path); err != nil {
		return nil, err
	}
	if err := m.setPodLabels(a.PodLabels); err != nil {
		return nil, err
	}
	return m, nil
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
		// An entry of the path is a label without a key.
		if _, err := keys.Parse(keys.Label, []string{label}); err != nil || strings.Contains(label, "=") {
			return fmt.Errorf("path: invalid label key %q: use node labels from the widest to the narrowest, such as %s",
				label, corev1.LabelTopologyZone)
		}
		if slices.Contains(labels[:i], label) {
			return fmt.Errorf("path: duplicate node label %q: remove one", label)
		}
		m.path = append(m.path, step{
			label:   label,
			missing: "the node has no label " + label + " for the path",
			empty:   "the node's label " + label + " for the path is empty",
		})
	}
	m.short[pathKey] = true
	return nil
}

func (m *Mutator) setPodLabels(wanted []string) error {
	m.pod.keys = map[string]bool{}
	for _, key := range wanted {
		switch {
		case key == "*":
			m.pod.all = true
		case key == pathKey && len(m.path) > 0:
			return fmt.Errorf("pod labels: %q cannot be a label, because its value contains '/': remove it", key)
		case !m.canGive(key):
			return fmt.Errorf("pod labels: %q is not the key of a copied node label: use a key without prefix%s",
				key, m.examples())
		default:
			m.pod.keys[key] = true
		}
	}
	for i := range m.copies {
		m.copies[i].pod = m.pod.has(m.copies[i].Key)
	}
	return nil
}

// canGive reports whether the labels of a node can result in the key.
func (m *Mutator) canGive(key string) bool {
	return m.short[key] || slices.ContainsFunc(m.prefixes, func(p prefix) bool { return p.canGive(key) })
}

// examples returns the end of an error message with a valid key.
func (m *Mutator) examples() string {
	if len(m.copies) == 0 {
		return ""
	}
	return ", such as " + m.copies[0].Key
}

// Name implements mutators.Mutator.
func (*Mutator) Name() string { return Name }

// Mutate returns the configured labels of the node and its path. It omits missing labels and copies
// empty labels.
func (m *Mutator) Mutate(in mutators.Input) (mutators.Output, error) {
	labels := in.Node.Labels
	out := mutators.Output{Annotations: make(map[string]string, m.size(labels)), ReplaceLabels: m.replace}
	for i := range m.copies {
		c := &m.copies[i]
		if value, ok := labels[c.From]; ok {
			add(&out, c.Key, value, c.pod)
		} else {
			out.Missing = append(out.Missing, c.missing)
		}
	}
	m.copyByPrefix(&out, labels)
	m.addPath(&out, labels)
	return out, nil
}

// size returns an upper bound of the number of annotations.
func (m *Mutator) size(labels map[string]string) int {
	size := len(m.copies) + 1
	for _, p := range m.prefixes {
		for label := range labels {
			if strings.HasPrefix(label, p.begin) {
				size++
			}
		}
	}
	return size
}

// copyByPrefix copies the labels that match entries with a star.
func (m *Mutator) copyByPrefix(out *mutators.Output, labels map[string]string) {
	if len(m.prefixes) == 0 {
		return
	}
	var clash bool
	for label, value := range labels {
		clash = m.copyMatch(out, label, value) || clash
	}
	if !clash {
		return
	}
	// Two labels have the same key. Repeat in reverse order, so that the first label has priority.
	sorted := slices.Sorted(maps.Keys(labels))
	for _, label := range slices.Backward(sorted) {
		m.copyMatch(out, label, labels[label])
	}
}

// copyMatch copies a label for every matching entry with a star. It reports whether it replaced
// another value.
func (m *Mutator) copyMatch(out *mutators.Output, label, value string) (clash bool) {
	if m.labels[label] {
		return false
	}
	for i := range m.prefixes {
		key, ok := m.prefixes[i].key(label)
		if !ok || m.short[key] {
			continue
		}
		if had, taken := out.Annotations[key]; taken && had != value {
			clash = true
		}
		add(out, key, value, m.pod.has(key))
	}
	return clash
}

// addPath adds the path, or reports the missing labels.
func (m *Mutator) addPath(out *mutators.Output, labels map[string]string) {
	whole, length := true, 0
	for i := range m.path {
		s := &m.path[i]
		value, ok := labels[s.label]
		switch {
		case !ok:
			out.Missing = append(out.Missing, s.missing)
		case value == "":
			out.Missing = append(out.Missing, s.empty)
		}
		whole = whole && value != ""
		length += len(value) + 1
	}
	if !whole || len(m.path) == 0 {
		return
	}
	var path strings.Builder
	path.Grow(length)
	for i := range m.path {
		if i > 0 {
			path.WriteByte('/')
		}
		path.WriteString(labels[m.path[i].label])
	}
	out.Annotations[pathKey] = path.String()
}

// add adds the annotation and, if requested, the label of the pod. It skips an invalid label value,
// although a node in the API server cannot have one.
func add(out *mutators.Output, key, value string, pod bool) {
	out.Annotations[key] = value
	if !pod {
		return
	}
	if !keys.ValidLabelValue(value) {
		delete(out.Labels, key)
		return
	}
	if out.Labels == nil {
		out.Labels = map[string]string{}
	}
	out.Labels[key] = value
}
