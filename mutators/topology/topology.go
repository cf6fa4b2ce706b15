// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package topology is the mutator that tells a pod where it landed: labels of
// its node become annotations topology.<domain>/<key>, and labels of the pod
// where the operator wants it.
//
// Which labels, and under which keys, is a list of entries:
//
//	example.com/rack           the key is rack, the part behind the slash
//	example.com/rack=row       the key is row
//	example.com/net-*          every label that begins so; example.com/net-leaf
//	                           gets the key net-leaf
//	example.com/net-*=n-*      the star stands for the rest: the key is n-leaf
//	*                          every label of the node
//
// An entry without a star goes before those with one: they add nothing for its
// label, and nothing under its key. Where two labels of a node would get one key
// by stars, the first in sorted order has it and the other is left out.
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

// Name of the mutator.
const Name = "topology"

// pathKey is the key of the path.
const pathKey = "path"

// DefaultLabels are the well-known labels that say where a node is.
func DefaultLabels() []string {
	return []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelHostname}
}

// Options of the mutator.
type Options struct {
	// Labels are the node labels to copy; the package's documentation has the
	// forms. No two entries without a star may become the same key.
	Labels []string
	// Path are the node labels whose values, from the widest to the narrowest and
	// joined by '/', become the key "path". A label value never holds a '/', so it
	// can be split again. A node that lacks one of them, or has it empty, gives no
	// path: with a gap it would be that of another place. Empty for no path.
	Path []string
	// PodLabels are the keys that become labels of the pod as well, as they stand
	// behind topology.<domain>/; "*" is every key but the path's, which is no label
	// value.
	PodLabels []string
	// ReplacePodLabels lets them replace values that the pod or the Binding has.
	ReplacePodLabels bool
}

// Mutator copies node labels; see New.
type Mutator struct {
	copies   []labelCopy
	prefixes []prefix
	path     []step
	// labels and short are what entries without a star, and the path, have taken.
	labels, short map[string]bool
	pod           podLabels
	replace       bool
}

// labelCopy is an entry without a star.
type labelCopy struct {
	keys.Copy
	// missing is made beforehand: a cluster may have many nodes without the label.
	missing string
	// pod says that the key is a pod label too.
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

// New checks the options and returns the mutator.
func New(o Options) (*Mutator, error) {
	m := &Mutator{labels: map[string]bool{}, short: map[string]bool{}, replace: o.ReplacePodLabels}
	var plain []string
	for _, entry := range o.Labels {
		if label, _, _ := strings.Cut(entry, "="); !strings.Contains(label, "*") {
			plain = append(plain, entry)
			continue
		}
		p, err := parsePrefix(entry)
		if err != nil {
			return nil, err
		}
		if slices.Contains(m.prefixes, p) {
			return nil, fmt.Errorf("%q is given twice: once is enough", entry)
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
	if err := m.setPath(o.Path); err != nil {
		return nil, err
	}
	if err := m.setPodLabels(o.PodLabels); err != nil {
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
			return fmt.Errorf("node label %q would become the key %q, which is the path's: give it another, as in %s=other-key",
				c.From, pathKey, c.From)
		}
	}
	for i, label := range labels {
		// What is good for a label to copy is good for one in the path, but it has
		// no key of its own.
		if _, err := keys.Parse(keys.Label, []string{label}); err != nil || strings.Contains(label, "=") {
			return fmt.Errorf("path: %q is no label key: write labels of the node from the widest place to the narrowest, such as %s",
				label, corev1.LabelTopologyZone)
		}
		if slices.Contains(labels[:i], label) {
			return fmt.Errorf("path: the node label %q is given twice: once is enough", label)
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
			return fmt.Errorf("pod labels: %q can be an annotation only, as a label value holds no '/': take it out", key)
		case !m.canGive(key):
			return fmt.Errorf("pod labels: %q is no key of a copied node label: write one as it stands behind topology.<domain>/%s",
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

// canGive says whether some node gives the key.
func (m *Mutator) canGive(key string) bool {
	return m.short[key] || slices.ContainsFunc(m.prefixes, func(p prefix) bool { return p.canGive(key) })
}

// examples continues an error with the keys that there are.
func (m *Mutator) examples() string {
	if len(m.copies) == 0 {
		return ""
	}
	return ", such as " + m.copies[0].Key
}

// Name implements mutators.Mutator.
func (*Mutator) Name() string { return Name }

// Mutate returns the configured labels that the node has, and its path. A label
// that the node lacks gives no annotation; an empty one gives an empty annotation.
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

// size is how many annotations there will be, or a few more.
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

// copyByPrefix copies what the entries with a star stand for.
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
	// Two labels want one key, which is rare: only now does their order matter.
	// Backwards, so that the first has the last word.
	sorted := slices.Sorted(maps.Keys(labels))
	for _, label := range slices.Backward(sorted) {
		m.copyMatch(out, label, labels[label])
	}
}

// copyMatch copies one label by every entry with a star that it matches, and
// says whether it replaced another value.
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

// addPath joins the path, or tells what it lacks.
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

// add sets the annotation, and the pod's label where it is wanted. The API server
// has no node with a value that is none for a pod: such a one is not passed on.
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
