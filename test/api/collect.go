// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"

	client "github.com/prebind/prebind/cmd/kubectl-prebind/app"
	"github.com/prebind/prebind/cmd/prebind/app"
	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/mutators/nodeinfo"
	"github.com/prebind/prebind/mutators/topology"
	policyv1alpha1 "github.com/prebind/prebind/policy/v1alpha1"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/metrics"
)

// collect returns the items of the repository in the current directory.
func collect(ctx context.Context) (items, error) {
	i := items{}
	i.addCommand(app.NewCommand())
	i.addCommand(client.NewCommand())
	i.addPlugins()
	return i, errors.Join(
		i.addMutators(),
		i.addMetrics(),
		i.addGo(ctx),
		i.addSchemaFile("config", "config/configuration.schema.json"),
		i.addSchemaFile("chart-value", "charts/prebind/values.schema.json"),
		i.addManifests("config"),
		i.addLibrary("config/policies/*/policy.yaml"),
		i.addDenials("client/testdata/denials.json"),
	)
}

// addCommand adds the command, its flags and its subcommands.
func (i items) addCommand(cmd *cobra.Command) {
	cmd.InitDefaultHelpFlag()
	i.add("command", cmd.CommandPath(), "")
	flags := func(f *pflag.Flag) {
		if f.Hidden && f.Deprecated == "" { // Flags of kubectl for the connection, and alpha flags of a library.
			return
		}
		i.add("flag", cmd.CommandPath()+" --"+f.Name, f.Value.Type()+strings.TrimSuffix(", -"+f.Shorthand, ", -"))
	}
	cmd.LocalFlags().VisitAll(flags)
	for _, child := range cmd.Commands() {
		if child.IsAvailableCommand() {
			i.addCommand(child)
		}
	}
}

// configured is a label and an annotation of the node that the configuration names. Its key stands for all such keys.
const configured = "example.com/configured"

// addMutators adds the names of mutators, and the keys that they write for a node with all values.
func (i items) addMutators() error {
	in := mutators.Input{
		Pod:  gen.Pod("pod", gen.Scheduler("scheduler")),
		User: authenticationv1.UserInfo{Username: "user"},
		Bind: mutators.Bind{Attempt: "attempt", Calls: 1},
		Node: gen.Node("node", gen.Region("region"), gen.Zone("zone"), gen.Label(corev1.LabelInstanceTypeStable, "type"),
			gen.Label("karpenter.sh/capacity-type", "spot"), gen.Label(configured, "value"), gen.Annotation(configured, "value")),
		Devices: []mutators.Device{{Request: "<request>"}},
	}
	in.Binding = gen.Binding(in.Pod, in.Node.Name)
	in.Node.Spec.ProviderID = "provider:///id"
	in.Node.Status.NodeInfo = corev1.NodeSystemInfo{
		Architecture: "amd64", OperatingSystem: "linux", OSImage: "image", KernelVersion: "1", KubeletVersion: "1", ContainerRuntimeVersion: "1",
	}
	for _, kind := range []corev1.NodeAddressType{
		corev1.NodeHostName, corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeInternalDNS, corev1.NodeExternalDNS,
	} {
		in.Node.Status.Addresses = append(in.Node.Status.Addresses, corev1.NodeAddress{Type: kind, Address: "node"})
	}
	for _, r := range app.RegisteredMutators() {
		i.add("mutator", r.Name, "")
		var arguments v1alpha1.Arguments
		if r.Arguments != nil {
			arguments = r.Arguments()
		}
		switch a := arguments.(type) {
		case *topology.Arguments:
			a.Labels, a.Path = append(a.Labels, configured), []string{configured}
		case *nodeinfo.Arguments:
			a.Annotations = []string{configured}
		}
		m, err := r.New(arguments)
		if err != nil {
			return err
		}
		out, err := m.Mutate(in)
		if err != nil {
			return err
		}
		for key := range out.Annotations {
			if key == path.Base(configured) {
				key = "<key>"
			}
			i.add("key", r.Name+"."+v1alpha1.Domain+"/"+key, "")
		}
	}
	return nil
}

// addPlugins adds the names of plugins, and the keys of the annotations that they read.
func (i items) addPlugins() {
	for _, p := range app.RegisteredPlugins() {
		i.add("plugin", p.Name, "")
		for key := range strings.SplitSeq(p.AnnotationsHelp, ", ") {
			if key != "" {
				i.add("key", p.Name+"."+v1alpha1.Domain+"/"+key, "")
			}
		}
	}
}

func (i items) addMetrics() error {
	all, err := metrics.All()
	for _, m := range all {
		// Labels can be added, but a query depends on those that exist.
		i.add("metric", m.Name, m.Type)
		for _, label := range m.Labels {
			i.add("metric-label", m.Name+"{"+label+"}", "")
		}
	}
	return err
}

// schema is the part of a JSON schema that can break users.
type schema struct {
	Type       any               `json:"type"`
	Enum       []any             `json:"enum"`
	Const      any               `json:"const"`
	Properties map[string]schema `json:"properties"`
	Required   []string          `json:"required"`
	Items      *schema           `json:"items"`
	// More describes the values of a map, or forbids unknown fields.
	More any `json:"additionalProperties"`
}

func (i items) addSchemaFile(category, file string) error {
	return eachFile(file, func(s *schema) { i.addSchema(category, "", *s) })
}

// addSchema adds the fields below the path. An allowed value is an item of its own, so that values can be added.
func (i items) addSchema(category, path string, s schema) {
	if path != "" {
		i.add(category, path, typeOf(s))
	}
	for _, value := range s.Enum {
		i.add(category, fmt.Sprintf("%s=%v", path, value), "")
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		field := strings.TrimPrefix(path+"."+name, ".")
		i.addSchema(category, field, s.Properties[name])
		if slices.Contains(s.Required, name) {
			i[category+" "+field] += ", required"
		}
	}
	if s.Items != nil {
		i.addSchema(category, path+"[]", *s.Items)
	}
	if values, ok := s.More.(map[string]any); ok {
		i.add(category, path+".*", fmt.Sprint(values["type"]))
	}
}

func typeOf(s schema) string {
	switch {
	case s.Const != nil:
		return fmt.Sprint(s.Const)
	case s.Type != nil:
		return fmt.Sprint(s.Type)
	default:
		return "any"
	}
}

// object is the part of a manifest that users name.
type object struct {
	metav1.PartialObjectMetadata `json:",inline"`
	// Spec is that of a CustomResourceDefinition.
	Spec struct {
		Group string `json:"group"`
		Scope string `json:"scope"`
		Names struct {
			Plural     string   `json:"plural"`
			ShortNames []string `json:"shortNames"`
		} `json:"names"`
		Versions []struct {
			Name   string `json:"name"`
			Schema struct {
				OpenAPI schema `json:"openAPIV3Schema"`
			} `json:"schema"`
		} `json:"versions"`
	} `json:"spec"`
	// Webhooks is that of a webhook configuration.
	Webhooks []struct {
		Name string `json:"name"`
	} `json:"webhooks"`
}

// addLibrary adds the keys of the policy library that belong to Prebind: those of its annotations, and those of labels that select pods
// and namespaces. Keys with a prefix belong to the product that the policy is for.
func (i items) addLibrary(pattern string) error {
	below := "." + policyv1alpha1.GroupVersion.Group + "/"
	i.add("key", "<policy>"+below+"<key>", "")
	add := func(prefix, key string) {
		if !strings.Contains(key, "/") {
			i.add("key", prefix+key, "")
		}
	}
	return eachFile(pattern, func(policy *policyv1alpha1.BindPolicy) {
		for _, selector := range []*metav1.LabelSelector{policy.Spec.MatchConstraints.PodSelector, policy.Spec.MatchConstraints.NamespaceSelector} {
			if selector != nil {
				for key := range selector.MatchLabels {
					add("", key)
				}
			}
		}
		if policy.Spec.Mutations != nil {
			for _, m := range policy.Spec.Mutations.Annotations {
				add(policy.Name+below, m.Key)
			}
		}
	})
}

// eachFile calls the function with each file, which contains one object.
func eachFile[T any](pattern string, do func(*T)) error {
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		return cmp.Or(err, fmt.Errorf("no file matches %s", pattern))
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		object := new(T)
		if err := sigsyaml.Unmarshal(content, object); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		do(object)
	}
	return nil
}

// examples are files with custom resources of other products, which do not belong to an installation.
var examples = sets.New("elasticsearch.yaml", "nodeset.yaml", "raycluster.yaml", "strimzi-kafka.yaml")

// addManifests adds the kustomizations, and the kinds and names of the objects below the directory, without examples.
func (i items) addManifests(dir string) error {
	return filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(file) != ".yaml" || examples.Has(entry.Name()) {
			return err
		}
		if entry.Name() == "kustomization.yaml" {
			i.add("kustomization", filepath.ToSlash(filepath.Dir(file)), "")
			return nil
		}
		opened, err := os.Open(file)
		if err != nil {
			return err
		}
		defer func() { _ = opened.Close() }()
		for decoder := yaml.NewYAMLOrJSONDecoder(opened, 4096); ; {
			var o object
			switch err := decoder.Decode(&o); {
			case errors.Is(err, io.EOF):
				return nil
			case err != nil:
				// Patches and configuration files can have another form.
				return nil
			}
			i.addObject(o)
		}
	})
}

func (i items) addObject(o object) {
	if o.Kind == "" || o.Name == "" {
		return
	}
	i.add("object", o.Kind+" "+o.Name, o.APIVersion)
	for _, w := range o.Webhooks {
		i.add("webhook", w.Name, "")
	}
	if o.Kind != "CustomResourceDefinition" {
		return
	}
	for _, short := range o.Spec.Names.ShortNames {
		i.add("crd", o.Spec.Names.Plural+" alias "+short, "")
	}
	for _, v := range o.Spec.Versions {
		i.add("crd", o.Spec.Names.Plural+" "+o.Spec.Group+"/"+v.Name, o.Spec.Scope)
		i.addSchema("crd", o.Spec.Names.Plural+"/"+v.Name, v.Schema.OpenAPI)
	}
}

// addDenials adds the codes of denials from recorded answers of Prebind. A test in test/golden keeps them equal to those of the program.
func (i items) addDenials(file string) error {
	return eachFile(file, func(denials *map[string]struct {
		Decision string
		Status   metav1.Status
	}) {
		for _, d := range *denials {
			i.add("denial", d.Decision, fmt.Sprintf("code %d, reason %s", d.Status.Code, d.Status.Reason))
		}
	})
}
