// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests_test

import (
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "Update the files in testdata.")

// TestRendered compares the shipped kustomizations and components, and the chart with some values, with the files in testdata. The files of
// other renderings contain only the objects that differ. After a change of a manifest, run the test with -update and review the
// changes: for example, a role needs no wildcards, and a webhook must not match Prebind's own namespace.
func TestRendered(t *testing.T) {
	kustomization := func(t *testing.T, dir string) []string {
		t.Helper()
		out, err := kustomize(t.Context(), dir)
		require.NoError(t, err)
		return documents(t, out)
	}
	shipped, alone := kustomization(t, everything), kustomization(t, base)
	compare(t, "default", shipped)
	own := kustomization(t, selfManaged)
	compare(t, "self-managed", difference(own, shipped))
	compare(t, "first-install", difference(kustomization(t, "config/first-install"), shipped))
	compare(t, "first-install-self-managed", difference(kustomization(t, "config/first-install/self-managed"), own))
	// A component that needed another one would not build here.
	for _, component := range components(t) {
		name := strings.ReplaceAll(component, "/", "-")
		t.Run(name, func(t *testing.T) {
			var files map[string]string
			if component == "certificates/files" {
				files = map[string]string{"secret.yaml": "{apiVersion: v1, kind: Secret, metadata: {name: prebind-webhook-tls, namespace: prebind-system}, data: {ca.crt: " + caBundle + "}}"}
			}
			compare(t, name, difference(kustomization(t, overlay(t, []string{base}, []string{component}, files)), alone))
		})
	}
	rendered := func(t *testing.T, args ...string) []string {
		t.Helper()
		out, err := helmTemplate(t, args...)
		require.NoError(t, err)
		return documents(t, out)
	}
	chartDefault := rendered(t)
	compare(t, "chart-hooks", slices.DeleteFunc(slices.Clone(chartDefault), func(document string) bool { return !strings.Contains(document, hook) }))
	for name, values := range map[string]string{
		"chart-values": "config.budgets.prebindTimeout=5m,config.arguments.topology.labels={example.com/rack},mutators.bind-info.enabled=true,prebindPlugins.device.enabled=false," +
			"annotationPolicy.enabled=true,annotationPolicy.schedulers={system:kube-scheduler,system:serviceaccount:volcano:scheduler}," +
			"flowSchema.schedulers={system:kube-scheduler,system:serviceaccount:volcano:scheduler},networkPolicy.apiServerCIDRs={192.0.2.0/24},replicas=3," +
			"exemptNamespaces={prebind-system,kube-system,gpu-operator},timeoutSeconds=15,image.tag=v1.2.3,image.pullSecrets[0].name=registry,tolerations[0].operator=Exists," +
			"extraArgs={--hold=3s},certificates.mode=selfManaged,clientCA.enabled=true",
		"chart-less": "networkPolicy.enabled=false,podDisruptionBudget.enabled=false,resourceQuota.enabled=false,image.tag=v1.2.3,image.digest=sha256:" + strings.Repeat("0", 64),
	} {
		t.Run(name, func(t *testing.T) { compare(t, name, difference(rendered(t, "--set="+values), chartDefault)) })
	}
}

// helmLabel matches labels that only Helm adds.
var helmLabel = regexp.MustCompile(`(?m)^ *(app\.kubernetes\.io/(instance|managed-by|version)|helm\.sh/chart): .*\n`)

// documents returns the objects of a rendering without those that are large and have tests of their own: CustomResourceDefinitions and the dashboard.
func documents(t *testing.T, content []byte) []string {
	t.Helper()
	var out []string
	for document := range strings.SplitSeq(string(content), "\n---\n") {
		var object any
		require.NoError(t, yaml.Unmarshal([]byte(document), &object), document)
		normal, err := yaml.Marshal(object)
		require.NoError(t, err)
		if text := helmLabel.ReplaceAllString(string(normal), ""); object != nil && !strings.Contains(text, "\nkind: CustomResourceDefinition\n") && !strings.Contains(text, "grafana_dashboard:") {
			out = append(out, text)
		}
	}
	return out
}

// difference returns the documents that the other rendering lacks, and the names of objects that only the other rendering has.
func difference(of, other []string) []string {
	names := map[string]bool{}
	for _, document := range of {
		names[nameOf(document)] = true
	}
	out := slices.DeleteFunc(slices.Clone(of), func(document string) bool { return slices.Contains(other, document) })
	for _, document := range other {
		if name := nameOf(document); name != "" && !names[name] {
			out = append(out, "# without "+name+"\n")
		}
	}
	return out
}

// nameOf returns the kind and the name of a document. A ConfigMap with a generated name has none.
func nameOf(document string) string {
	var object struct {
		Kind     string
		Metadata struct{ Name string }
	}
	if err := yaml.Unmarshal([]byte(document), &object); err != nil || object.Kind == "ConfigMap" {
		return ""
	}
	return object.Kind + " " + object.Metadata.Name
}

func compare(t *testing.T, name string, rendered []string) {
	t.Helper()
	file, got := filepath.Join("testdata", name+".yaml"), strings.Join(rendered, "---\n")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, string(want), got, "%s: run the test with -update and review the changes", file)
	assert.NotRegexp(t, `(apiGroups|resources|verbs):\n *- '\*'`, got, "a rule should have no wildcards")
}

// components returns the components of config/webhook, by their paths.
func components(t *testing.T) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(filepath.Join(root, everything), func(p string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Base(p) != "kustomization.yaml" {
			return err
		}
		content, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(filepath.Join(root, everything), filepath.Dir(p))
		if err == nil && strings.Contains(string(content), "\nkind: Component\n") {
			found = append(found, filepath.ToSlash(dir))
		}
		return err
	})
	require.NoError(t, err)
	require.NotEmpty(t, found)
	return found
}
