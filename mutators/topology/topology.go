// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package topology is the mutator that tells a pod where it landed: labels of
// its node become annotations topology.<domain>/<key>.
package topology

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/prebind/prebind/mutators"
)

// Name of the mutator.
const Name = "topology"

// DefaultLabels are the well-known labels that say where a node is.
func DefaultLabels() []string {
	return []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelHostname}
}

// Options of the mutator.
type Options struct {
	// Labels are the node labels to copy, each as "label" or "label=key". Without
	// a key it is the part of the label behind the slash: example.com/rack
	// becomes topology.<domain>/rack. No two may become the same key.
	Labels []string
}

// Mutator copies node labels; see New.
type Mutator struct {
	copies []labelCopy
}

type labelCopy struct{ label, key string }

var _ mutators.Mutator = (*Mutator)(nil)

// New checks the options and returns the mutator.
func New(o Options) (*Mutator, error) {
	m := &Mutator{}
	byKey := map[string]string{}
	for _, entry := range o.Labels {
		c, err := parse(entry)
		if err != nil {
			return nil, err
		}
		if other, taken := byKey[c.key]; taken {
			return nil, fmt.Errorf("node labels %q and %q would both become the key %q: give one of them another, as in %s=other-key",
				other, c.label, c.key, c.label)
		}
		byKey[c.key] = c.label
		m.copies = append(m.copies, c)
	}
	return m, nil
}

func parse(entry string) (labelCopy, error) {
	label, key, named := strings.Cut(entry, "=")
	if problems := validation.IsQualifiedName(label); len(problems) > 0 {
		return labelCopy{}, fmt.Errorf("%q: %q is no label key: %s", entry, label, strings.Join(problems, "; "))
	}
	if !named {
		key = label[strings.LastIndex(label, "/")+1:]
	}
	if problems := validation.IsQualifiedName(key); len(problems) > 0 || strings.Contains(key, "/") {
		return labelCopy{}, fmt.Errorf("%q: %q is no annotation key without prefix: use letters, digits, '-', '_' and '.', 63 at most", entry, key)
	}
	return labelCopy{label: label, key: key}, nil
}

// Name implements mutators.Mutator.
func (*Mutator) Name() string { return Name }

// Mutate returns the configured labels that the node has. A label that the node
// lacks gives no annotation; an empty one gives an empty annotation.
func (m *Mutator) Mutate(in mutators.Input) (mutators.Output, error) {
	annotations := make(map[string]string, len(m.copies))
	for _, c := range m.copies {
		if value, ok := in.Node.Labels[c.label]; ok {
			annotations[c.key] = value
		}
	}
	return mutators.Output{Annotations: annotations}, nil
}
