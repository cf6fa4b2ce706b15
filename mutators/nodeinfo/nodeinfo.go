// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodeinfo is the mutator that adds facts about the node as annotations
// node-info.prebind.dev/<key>.
//
//	instance-type              label node.kubernetes.io/instance-type, or else
//	                           beta.kubernetes.io/instance-type
//	capacity-type              see below
//	provider-id                spec.providerID
//	architecture               status.nodeInfo, as for the next five keys
//	operating-system
//	os-image
//	kernel-version
//	kubelet-version
//	container-runtime-version
//	internal-ip                status.addresses of the type InternalIP
//	external-ip                of the type ExternalIP
//	internal-dns               of the type InternalDNS
//	external-dns               of the type ExternalDNS
//	hostname                   of the type Hostname
//
// Several addresses of one type are separated by commas, in the order of the node. The mutator omits
// annotations with empty values.
//
// capacity-type shows whether the node can be reclaimed at short notice. It is the value of the
// first of these labels that is set, in lower case and with '-' instead of '_':
//
//	karpenter.sh/capacity-type              spot, on-demand, reserved
//	eks.amazonaws.com/capacityType          SPOT, ON_DEMAND, CAPACITY_BLOCK
//	cloud.google.com/gke-spot               true is spot
//	cloud.google.com/gke-preemptible        true is preemptible
//	cloud.google.com/gke-provisioning       spot, preemptible, standard
//	kubernetes.azure.com/scalesetpriority   spot, regular
//	node.kubernetes.io/lifecycle            spot, normal; also Ec2Spot, OnDemand
//
// The values standard, regular, normal, and ondemand become on-demand, and ec2spot becomes spot.
// Other values do not change.
package nodeinfo

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/mutators/internal/keys"
)

// Name is the name of the mutator.
const Name = "node-info"

// Registration returns the registry entry of the mutator.
func Registration() mutators.Registration {
	return mutators.Registration{
		Name:        Name,
		Description: "facts of the node: instance type, capacity type, architecture, versions, addresses",
		Arguments:   func() v1alpha1.Arguments { return &Arguments{} },
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
	// Annotations are the node annotations to copy, each as "annotation" or "annotation=key".
	// The default key is the part after the slash. Keys must be unique and differ from those of
	// the mutator itself, such as os-image.
	Annotations []string `json:"annotations"`
}

// AddFlags implements v1alpha1.Arguments.
func (a *Arguments) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&a.Annotations, "node-info-annotations", a.Annotations,
		"Node annotations that the mutator node-info also copies, each as 'annotation' or 'annotation=key'.")
}

// Validate implements v1alpha1.Arguments.
func (a *Arguments) Validate(path *field.Path) field.ErrorList {
	if _, err := New(a); err != nil {
		return field.ErrorList{field.Invalid(path.Child("annotations"), strings.Join(a.Annotations, ","), err.Error())}
	}
	return nil
}

// Mutator adds information about the node; see New.
type Mutator struct{ copies []keys.Copy }

// New returns the mutator, or an error if the arguments are invalid.
func New(a *Arguments) (*Mutator, error) {
	copies, err := keys.Parse(keys.Annotation, a.Annotations)
	if err != nil {
		return nil, err
	}
	for _, c := range copies {
		for i := range facts {
			if facts[i].key == c.Key {
				return nil, fmt.Errorf("node annotation %q has the key %q, which %s uses itself: set another key, such as %s=other-key",
					c.From, c.Key, Name, c.From)
			}
		}
	}
	return &Mutator{copies: copies}, nil
}

// Name implements mutators.Mutator.
func (*Mutator) Name() string { return Name }

// Mutate returns the facts of the node and the configured annotations. It also copies an empty
// configured annotation.
func (m *Mutator) Mutate(in mutators.Input) (mutators.Output, error) {
	out := mutators.Output{Annotations: make(map[string]string, len(facts)+len(m.copies))}
	for i := range facts {
		if value := facts[i].of(in.Node); value != "" {
			out.Annotations[facts[i].key] = value
		}
	}
	for _, c := range m.copies {
		if value, ok := in.Node.Annotations[c.From]; ok {
			out.Annotations[c.Key] = value
		} else {
			out.Missing = append(out.Missing, "the node has no annotation "+c.From)
		}
	}
	return out, nil
}

// facts are the built-in keys and the functions that return their values.
var facts = []struct {
	key string
	of  func(node *corev1.Node) string
}{
	{"instance-type", instanceType},
	{"capacity-type", capacityType},
	{"provider-id", func(n *corev1.Node) string { return n.Spec.ProviderID }},
	{"architecture", func(n *corev1.Node) string { return n.Status.NodeInfo.Architecture }},
	{"operating-system", func(n *corev1.Node) string { return n.Status.NodeInfo.OperatingSystem }},
	{"os-image", func(n *corev1.Node) string { return n.Status.NodeInfo.OSImage }},
	{"kernel-version", func(n *corev1.Node) string { return n.Status.NodeInfo.KernelVersion }},
	{"kubelet-version", func(n *corev1.Node) string { return n.Status.NodeInfo.KubeletVersion }},
	{"container-runtime-version", func(n *corev1.Node) string { return n.Status.NodeInfo.ContainerRuntimeVersion }},
	{"internal-ip", addresses(corev1.NodeInternalIP)},
	{"external-ip", addresses(corev1.NodeExternalIP)},
	{"internal-dns", addresses(corev1.NodeInternalDNS)},
	{"external-dns", addresses(corev1.NodeExternalDNS)},
	{"hostname", addresses(corev1.NodeHostName)},
}

func instanceType(node *corev1.Node) string {
	if value := node.Labels[corev1.LabelInstanceTypeStable]; value != "" {
		return value
	}
	return node.Labels[corev1.LabelInstanceType]
}

// addresses returns the node's addresses of the type, separated by commas.
func addresses(kind corev1.NodeAddressType) func(*corev1.Node) string {
	return func(node *corev1.Node) string {
		var all []string
		for i := range node.Status.Addresses {
			if a := &node.Status.Addresses[i]; a.Type == kind && a.Address != "" {
				all = append(all, a.Address)
			}
		}
		return strings.Join(all, ",")
	}
}

// capacityLabels are the labels for the capacity type. A label with a flag applies if its value is
// "true". The label of the provisioner comes first, and the label that any user can set comes last.
var capacityLabels = []struct{ label, flag string }{
	{label: "karpenter.sh/capacity-type"},
	{label: "eks.amazonaws.com/capacityType"},
	{label: "cloud.google.com/gke-spot", flag: "spot"},
	{label: "cloud.google.com/gke-preemptible", flag: "preemptible"},
	{label: "cloud.google.com/gke-provisioning"},
	{label: "kubernetes.azure.com/scalesetpriority"},
	{label: "node.kubernetes.io/lifecycle"},
}

func capacityType(node *corev1.Node) string {
	for _, l := range capacityLabels {
		switch value := node.Labels[l.label]; {
		case value == "":
		case l.flag == "":
			return normalise(value)
		case value == "true":
			return l.flag
		}
	}
	return ""
}

func normalise(value string) string {
	value = strings.ReplaceAll(strings.ToLower(value), "_", "-")
	switch value {
	case "standard", "regular", "normal", "ondemand":
		return "on-demand"
	case "ec2spot":
		return "spot"
	default:
		return value
	}
}
