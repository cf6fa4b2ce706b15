// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests_test

import (
	"flag"
	"io/fs"
	"os"
	"path"
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

// TestRendered compares the shipped kustomizations and components with the files in testdata. The files of other renderings
// contain only the objects that differ. After a change of a manifest, run the test with -update and review the changes: for
// example, a role needs no wildcards, and a webhook must not match Prebind's own namespace.
func TestRendered(t *testing.T) {
	shipped, alone := kustomization(t, everything), kustomization(t, overlay(t, base))
	compare(t, "default", shipped)
	own := kustomization(t, selfManaged)
	compare(t, "self-managed", difference(own, shipped))
	compare(t, "first-install", difference(kustomization(t, firstInstall), shipped))
	compare(t, "first-install-self-managed", difference(kustomization(t, firstInstall+"/self-managed"), own))
	// A component that needed another one would not build here.
	for _, component := range components(t) {
		name := strings.ReplaceAll(component, "/", "-")
		t.Run(name, func(t *testing.T) { compare(t, name, difference(kustomization(t, overlay(t, base, component)), alone)) })
	}
}

// TestRenderedChart compares the chart with the kustomization that has the same objects, so that both ways of installation have the
// same result, and with itself for other values.
func TestRenderedChart(t *testing.T) {
	const ca = "certificates.files.caBundle=" + caBundle
	byDefault := rendered(t)
	isHook := func(document string) bool { return strings.Contains(document, "helm.sh/hook: ") }
	compare(t, "chart-hooks", slices.DeleteFunc(slices.Clone(byDefault), func(document string) bool { return !isHook(document) }))
	for name, tc := range map[string]struct {
		values, like []string
	}{
		"default":      {values: []string{"createNamespace=true"}, like: kustomization(t, firstInstall)},
		"enforces":     {values: []string{"createNamespace=true", "config.mode=Enforce", "failurePolicy=Fail"}, like: kustomization(t, everything)},
		"self-managed": {values: []string{"createNamespace=true", "certificates.mode=selfManaged"}, like: kustomization(t, firstInstall+"/self-managed")},
		"files": {
			values: []string{"createNamespace=true", "certificates.mode=files", ca},
			like:   kustomization(t, overlay(t, base, "audit", "failure-policy-ignore", "certificates/files", "plugins/device", "plugins/resource-claims", "plugins/volumebinding")),
		},
		"components": {
			values: []string{
				"createNamespace=true", "clientCA.enabled=true", "annotationPolicy.enabled=true", "explainRole.enabled=true",
				"prebindPlugins.policy.enabled=true", "mutators.device-info.enabled=true",
			},
			like: kustomization(t, overlay(t, firstInstall, "client-ca", "annotation-policy", "explain",
				"plugins/policy", "mutators/device-info")),
		},
		"monitoring": {
			values: []string{"createNamespace=true", "config.mode=Enforce", "failurePolicy=Fail", "monitoring.enabled=true"},
			like:   kustomization(t, overlay(t, everything, "monitoring")),
		},
		"values": {
			values: []string{"config.budgets.prebindTimeout=5m,config.arguments.topology.labels={example.com/rack},mutators.bind-info.enabled=true,prebindPlugins.device.enabled=false," +
				"annotationPolicy.enabled=true,annotationPolicy.schedulers={system:kube-scheduler,system:serviceaccount:volcano:scheduler}," +
				"flowSchema.schedulers={system:kube-scheduler,system:serviceaccount:volcano:scheduler},networkPolicy.apiServerCIDRs={192.0.2.0/24},replicas=3," +
				"exemptNamespaces={prebind-system,kube-system,gpu-operator},timeoutSeconds=15,image.tag=v1.2.3,image.pullSecrets[0].name=registry,tolerations[0].operator=Exists," +
				"extraArgs={--hold=3s},certificates.mode=selfManaged,clientCA.enabled=true,monitoring.enabled=true,monitoring.labels.release=prometheus"},
			like: byDefault,
		},
		"less": {
			values: []string{"flowSchema.limited=true,clusterNodes=15000,resources.requests.cpu=2,networkPolicy.enabled=false,podDisruptionBudget.enabled=false,resourceQuota.enabled=false,image.tag=v1.2.3,image.digest=sha256:" + strings.Repeat("0", 64)},
			like:   byDefault,
		},
	} {
		t.Run(name, func(t *testing.T) {
			objects := difference(rendered(t, "--set="+strings.Join(tc.values, ",")), tc.like)
			compare(t, "chart-"+name, slices.DeleteFunc(objects, isHook))
		})
	}
	options := difference(rendered(t, "--values=test/manifests/testdata/options.values.yaml"), rendered(t, "--set=monitoring.enabled=true"))
	compare(t, "chart-options", slices.DeleteFunc(options, isHook))
	for _, mode := range []string{"certManager", "selfManaged"} {
		elsewhere := strings.Join(rendered(t, "--namespace=elsewhere", "--set=annotationPolicy.enabled=true,monitoring.enabled=true,"+
			"prebindPlugins.policy.enabled=true,mutators.device-info.enabled=true,certificates.mode="+mode), "")
		assert.NotContains(t, strings.ReplaceAll(elsewhere, "--namespace=elsewhere", ""), namespace, "%s: everything is in the namespace of the release", mode)
	}
}

// rendered returns the objects of the chart.
func rendered(t *testing.T, args ...string) []string {
	t.Helper()
	out, err := helmTemplate(t, args...)
	require.NoError(t, err)
	return documents(t, out)
}

var (
	// helmOnly matches labels and the checksum that only Helm adds.
	helmOnly = regexp.MustCompile(`(?m)^ *(app\.kubernetes\.io/(instance|managed-by|version)|helm\.sh/chart|checksum/config): .*\n`)
	// hashed matches the name of the ConfigMap, which kustomize generates.
	hashed = regexp.MustCompile(`prebind-config-[a-z0-9]{10}`)
)

// documents returns the objects of a rendering. It omits the content of CustomResourceDefinitions and of the dashboard, which are large
// and have tests of their own.
func documents(t *testing.T, content []byte) []string {
	t.Helper()
	var out []string
	for document := range strings.SplitSeq(string(content), "\n---\n") {
		var object map[string]any
		require.NoError(t, yaml.Unmarshal([]byte(document), &object), document)
		if object == nil {
			continue
		}
		if object["kind"] == "CustomResourceDefinition" {
			delete(object, "spec")
		}
		if strings.Contains(document, "grafana_dashboard:") {
			delete(object, "data")
		}
		normal, err := yaml.Marshal(object)
		require.NoError(t, err)
		out = append(out, hashed.ReplaceAllString(helmOnly.ReplaceAllString(string(normal), ""), "prebind-config"))
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
		if name := nameOf(document); !names[name] {
			out = append(out, "# without "+name+"\n")
		}
	}
	return out
}

// nameOf returns the kind and the name of a document.
func nameOf(document string) string {
	var object struct {
		Kind     string
		Metadata struct{ Name string }
	}
	_ = yaml.Unmarshal([]byte(document), &object) // documents has written it.
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
	require.NoError(t, fs.WalkDir(os.DirFS(filepath.Join(root, everything)), ".", func(p string, _ fs.DirEntry, err error) error {
		if err != nil || path.Base(p) != "kustomization.yaml" {
			return err
		}
		content, err := os.ReadFile(filepath.Join(root, everything, p))
		if strings.Contains(string(content), "\nkind: Component\n") {
			found = append(found, path.Dir(p))
		}
		return err
	}))
	require.NotEmpty(t, found)
	return found
}
