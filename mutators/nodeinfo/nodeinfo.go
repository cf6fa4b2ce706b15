// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodeinfo is the mutator that tells a pod what its node is: facts of
// the node become annotations node-info.<domain>/<key>.
//
//	instance-type              label node.kubernetes.io/instance-type, or else
//	                           beta.kubernetes.io/instance-type
//	capacity-type              see below
//	provider-id                spec.providerID
//	architecture               status.nodeInfo, as are the next five
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
// Several addresses of one type are joined by commas in the node's order, as a
// dual-stack node has them. A fact that is empty gives no annotation.
//
// capacity-type tells whether the node may be taken away at short notice. It is
// that of the first of these labels that says something, in lower case with '-'
// for '_':
//
//	karpenter.sh/capacity-type              spot, on-demand, reserved
//	eks.amazonaws.com/capacityType          SPOT, ON_DEMAND, CAPACITY_BLOCK
//	cloud.google.com/gke-spot               true is spot
//	cloud.google.com/gke-preemptible        true is preemptible
//	cloud.google.com/gke-provisioning       spot, preemptible, standard
//	kubernetes.azure.com/scalesetpriority   spot, regular
//	node.kubernetes.io/lifecycle            spot, normal; also Ec2Spot, OnDemand
//
// standard, regular, normal and ondemand become on-demand, and ec2spot becomes
// spot. Any other value stays as it is.
package nodeinfo

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/mutators/internal/keys"
)

// Name of the mutator.
const Name = "node-info"

// Options of the mutator.
type Options struct {
	// Annotations are the node annotations to copy, each as "annotation" or
	// "annotation=key". Without a key it is the part of the annotation behind the
	// slash. No two may become the same key, and none may become a key that the
	// mutator has already, such as os-image.
	Annotations []string
}

// Mutator tells about the node; see New.
type Mutator struct {
	copies []annotationCopy
}

type annotationCopy struct {
	keys.Copy
	// missing is made beforehand: a cluster may have many nodes without the
	// annotation.
	missing string
}

var _ mutators.Mutator = (*Mutator)(nil)

// New checks the options and returns the mutator.
func New(o Options) (*Mutator, error) {
	copies, err := keys.Parse(keys.Annotation, o.Annotations)
	if err != nil {
		return nil, err
	}
	m := &Mutator{}
	for _, c := range copies {
		for i := range facts {
			if facts[i].key == c.Key {
				return nil, fmt.Errorf("node annotation %q would become the key %q, which %s has already: give it another, as in %s=other-key",
					c.From, c.Key, Name, c.From)
			}
		}
		m.copies = append(m.copies, annotationCopy{Copy: c, missing: "the node has no annotation " + c.From})
	}
	return m, nil
}

// Name implements mutators.Mutator.
func (*Mutator) Name() string { return Name }

// Mutate returns the facts that the node has and the configured annotations. A
// configured annotation that is empty gives an empty annotation.
func (m *Mutator) Mutate(in mutators.Input) (mutators.Output, error) {
	out := mutators.Output{Annotations: make(map[string]string, len(facts)+len(m.copies))}
	for i := range facts {
		if value := facts[i].of(in.Node); value != "" {
			out.Annotations[facts[i].key] = value
		}
	}
	for i := range m.copies {
		c := &m.copies[i]
		if value, ok := in.Node.Annotations[c.From]; ok {
			out.Annotations[c.Key] = value
		} else {
			out.Missing = append(out.Missing, c.missing)
		}
	}
	return out, nil
}

// facts are the built-in keys and what they tell.
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

// addresses joins the node's addresses of the type.
func addresses(kind corev1.NodeAddressType) func(*corev1.Node) string {
	return func(node *corev1.Node) string {
		joined := ""
		for i := range node.Status.Addresses {
			a := &node.Status.Addresses[i]
			switch {
			case a.Type != kind || a.Address == "":
			case joined == "":
				joined = a.Address
			default:
				joined += "," + a.Address
			}
		}
		return joined
	}
}

// capacityLabels tell the capacity type, by their value or, where they are a flag
// that is "true", by themselves. Whoever provisioned the node knows best, so
// Karpenter's goes first; a label that anyone may have put there goes last.
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
