// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/cmd/prebind/app"
	"github.com/prebind/prebind/test/install"
)

const (
	chart = "charts/prebind"
	hook  = "helm.sh/hook"
)

// helmTemplate renders the chart, in prebind-system unless the arguments say
// otherwise.
func helmTemplate(t *testing.T, args ...string) ([]byte, error) {
	t.Helper()
	require.NoError(t, touch(filepath.Join(root, chart), filepath.Join(root, "tools.mod")))
	top, err := filepath.Abs(root)
	require.NoError(t, err)
	return install.RenderChart(t.Context(), top, append([]string{"--namespace=" + namespace}, args...)...)
}

// renderChart decodes what the chart renders, strictly; the pre-delete hook's
// objects apart.
func renderChart(t *testing.T, args ...string) (objects, hooks []object) {
	t.Helper()
	out, err := helmTemplate(t, args...)
	require.NoError(t, err)
	for _, obj := range decode(t, out, admissionregistrationv1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme, corev1.AddToScheme, flowcontrolv1.AddToScheme,
		networkingv1.AddToScheme, policyv1.AddToScheme, rbacv1.AddToScheme, certmanagerv1.AddToScheme, addDefinitions) {
		if obj.GetAnnotations()[hook] != "" {
			hooks = append(hooks, obj)
		} else {
			objects = append(objects, obj)
		}
	}
	return objects, hooks
}

const (
	configName = "prebind-config"
	checksum   = "checksum/config"
	caBundle   = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk5vdGhpbmcKLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo="
)

// byName are the objects without the labels that are Helm's own, and without the checksums that make a changed configuration a rollout.
func byName(t *testing.T, objects []object) map[string]object {
	t.Helper()
	named := map[string]object{}
	for _, obj := range objects {
		labels := maps.Clone(obj.GetLabels())
		for _, l := range []string{"app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"} {
			delete(labels, l)
		}
		obj.SetLabels(labels)
		if config, ok := obj.(*corev1.ConfigMap); ok && strings.HasPrefix(config.Name, configName) {
			config.Name = configName
		}
		key := kind(obj) + " " + obj.GetNamespace() + "/" + obj.GetName()
		require.NotContains(t, named, key, "two objects of one name")
		if config, ok := obj.(*corev1.ConfigMap); ok {
			for file, content := range config.Data {
				var parsed any
				require.NoError(t, yaml.Unmarshal([]byte(content), &parsed))
				config.Data[file] = fmt.Sprint(parsed)
			}
		}
		if deployment, ok := obj.(*appsv1.Deployment); ok {
			template := &deployment.Spec.Template
			delete(template.Annotations, checksum)
			for _, v := range template.Spec.Volumes {
				if v.ConfigMap != nil {
					v.ConfigMap.Name = configName
				}
			}
			sortVolumes(&template.Spec)
		}
		named[key] = obj
	}
	return named
}

// sortVolumes gives the volumes and mounts an order, which for the API they do
// not have.
func sortVolumes(spec *corev1.PodSpec) {
	slices.SortFunc(spec.Volumes, func(a, b corev1.Volume) int { return strings.Compare(a.Name, b.Name) })
	for _, c := range spec.Containers {
		slices.SortFunc(c.VolumeMounts, func(a, b corev1.VolumeMount) int { return strings.Compare(a.MountPath, b.MountPath) })
	}
}

// Both ways of installation have the same result.
func TestChartIsTheKustomization(t *testing.T) {
	files := map[string]string{"secret.yaml": fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: prebind-webhook-tls, namespace: prebind-system}
data: {ca.crt: %s}
`, caBundle)}
	cases := map[string]struct {
		values     []string
		base       string
		components []string
		files      map[string]string
	}{
		"default":      {base: everything},
		"self-managed": {base: selfManaged, values: []string{"certificates.mode=selfManaged"}},
		"client CA":    {base: everything, components: []string{"client-ca"}, values: []string{"clientCA.enabled=true"}},
		"ignore":       {base: everything, components: []string{"failure-policy-ignore"}, values: []string{"failurePolicy=Ignore"}},
		"annotations":  {base: everything, components: []string{"annotation-policy"}, values: []string{"annotationPolicy.enabled=true"}},
		"explain":      {base: everything, components: []string{"explain"}, values: []string{"explainRole.enabled=true"}},
		"several":      {base: selfManaged, components: []string{"client-ca", "annotation-policy"}, values: []string{"certificates.mode=selfManaged", "clientCA.enabled=true", "annotationPolicy.enabled=true"}},
		"certificate":  {base: base, components: []string{"certificates/files", "plugins/device", "plugins/resource-claims", "plugins/volumebinding"}, files: files, values: []string{"certificates.mode=files", "certificates.files.caBundle=" + caBundle}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			want := byName(t, renderWith(t, []string{tc.base}, tc.components, tc.files))
			if tc.files != nil {
				// The operator's own, as he brings it in either way, and an image and labels that only his kustomization gives.
				delete(want, "Secret prebind-system/prebind-webhook-tls")
				deployment, ok := want["Deployment prebind-system/prebind"].(*appsv1.Deployment)
				require.True(t, ok)
				deployment.Spec.Template.Spec.Containers[0].Image = "ghcr.io/prebind/prebind:latest"
				for _, obj := range want {
					labels := maps.Clone(obj.GetLabels())
					if labels == nil {
						labels = map[string]string{}
					}
					labels["app.kubernetes.io/name"], labels["app.kubernetes.io/part-of"] = "prebind", "prebind"
					obj.SetLabels(labels)
				}
			}
			for _, obj := range want {
				// Objects of a component have no labels if it follows the kustomization that adds them.
				if len(obj.GetLabels()) == 0 {
					obj.SetLabels(map[string]string{"app.kubernetes.io/name": "prebind", "app.kubernetes.io/part-of": "prebind"})
				}
			}
			// Helm keeps the CustomResourceDefinition when it deletes the role of the plugin, so the chart names it.
			config, ok := want["ConfigMap prebind-system/prebind-config"].(*corev1.ConfigMap)
			require.True(t, ok)
			config.Data["config.yaml"] = strings.TrimSuffix(config.Data["config.yaml"], "]") + " prebindPlugins:[* -policy]]"
			args := []string{"--set=createNamespace=true"}
			for _, v := range tc.values {
				args = append(args, "--set="+v)
			}
			objects, _ := renderChart(t, args...)
			got := byName(t, objects)
			assert.Equal(t, slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got)))
			for key, obj := range want {
				assert.Equal(t, obj, got[key], key)
			}
		})
	}
}

func TestChartWithoutNamespace(t *testing.T) {
	with, _ := renderChart(t, "--set=createNamespace=true")
	without, _ := renderChart(t)
	want := byName(t, with)
	delete(want, "Namespace /"+namespace)
	assert.Equal(t, want, byName(t, without), "Helm makes the namespace, before the chart is rendered")
}

// The chart has the objects of the component policy while the plugin is on. Helm never deletes the CustomResourceDefinition, because
// its deletion would delete all BindPolicies.
func TestChartPolicy(t *testing.T) {
	keys := []string{
		"ClusterRole /prebind-policy", "ClusterRole /prebind-policy-resources", "ClusterRoleBinding /prebind-policy", "ClusterRoleBinding /prebind-policy-resources",
		"CustomResourceDefinition /bindpolicies.policy.prebind.dev", "ValidatingWebhookConfiguration /prebind-policy",
	}
	without, _ := renderChart(t)
	on, _ := renderChart(t, "--set=prebindPlugins.policy.enabled=true")
	before, got, want := byName(t, without), byName(t, on), byName(t, render(t, policyComponent))
	assert.Equal(t, keys, slices.Sorted(maps.Keys(want)))
	for _, key := range keys {
		assert.NotContains(t, before, key)
		want[key].SetLabels(map[string]string{"app.kubernetes.io/name": "prebind", "app.kubernetes.io/part-of": "prebind"})
		if kind(want[key]) == "CustomResourceDefinition" {
			want[key].SetAnnotations(map[string]string{"helm.sh/resource-policy": "keep"})
		}
		assert.Equal(t, want[key], got[key], key)
	}
	assert.Len(t, got, len(before)+len(keys))
}

// Wherever it is installed, its own namespace is exempt, and nothing points to
// prebind-system.
func TestChartElsewhere(t *testing.T) {
	for _, mode := range []string{"certManager", "selfManaged"} {
		t.Run(mode, func(t *testing.T) {
			args := []string{"--namespace=elsewhere", "--set=annotationPolicy.enabled=true,prebindPlugins.policy.enabled=true,mutators.device-info.enabled=true,certificates.mode=" + mode}
			out, err := helmTemplate(t, args...)
			require.NoError(t, err)
			assert.NotContains(t, strings.ReplaceAll(string(out), "--namespace=elsewhere", ""), "prebind-system")

			objects, hooks := renderChart(t, args...)
			webhook := get[*admissionregistrationv1.MutatingWebhookConfiguration](t, objects, "prebind").Webhooks[0]
			assert.Equal(t, []string{"elsewhere", "kube-system", "cert-manager"}, webhook.NamespaceSelector.MatchExpressions[0].Values)
			assert.Equal(t, "elsewhere", webhook.ClientConfig.Service.Namespace)
			for _, binding := range all[*admissionregistrationv1.ValidatingAdmissionPolicyBinding](objects) {
				assert.Equal(t, webhook.NamespaceSelector, binding.Spec.MatchResources.NamespaceSelector)
			}
			_, container := containerOf(t, objects)
			assert.Contains(t, container.Args, "--namespace=elsewhere", "its leases and records are where it may write them")
			if mode == "certManager" {
				assert.Equal(t, []string{"prebind-webhook.elsewhere.svc", "prebind-webhook.elsewhere.svc.cluster.local"},
					get[*certmanagerv1.Certificate](t, objects, "prebind-webhook").Spec.DNSNames, "the API server asks for that name")
			}
			for _, b := range slices.Concat(all[*rbacv1.ClusterRoleBinding](objects), all[*rbacv1.ClusterRoleBinding](hooks)) {
				assert.Equal(t, "elsewhere", b.Subjects[0].Namespace)
			}
			for _, b := range all[*rbacv1.RoleBinding](objects) {
				assert.Equal(t, "elsewhere", b.Subjects[0].Namespace)
			}
		})
	}
}

// toggled is the configuration's list, and the roles, of a chart with these values.
func toggled(t *testing.T, list string, values ...string) (names []any, roles []string) {
	t.Helper()
	var args []string
	for _, v := range values {
		args = append(args, "--set="+v)
	}
	objects, _ := renderChart(t, args...)
	var config map[string]any
	content := get[*corev1.ConfigMap](t, objects, "prebind-config").Data["config.yaml"]
	checkedConfig(t, content)
	require.NoError(t, yaml.UnmarshalStrict([]byte(content), &config))
	for _, r := range all[*rbacv1.ClusterRole](objects) {
		roles = append(roles, r.Name)
	}
	for _, r := range all[*rbacv1.Role](objects) {
		roles = append(roles, r.Name)
	}
	if config[list] != nil {
		var ok bool
		names, ok = config[list].([]any)
		require.True(t, ok)
	}
	return names, roles
}

// The values know what the program has, and its defaults; what differs from them
// is in the configuration.
func TestChartToggles(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(root, chart, "values.yaml"))
	require.NoError(t, err)
	var values struct {
		Mutators       map[string]struct{ Enabled bool } `json:"mutators"`
		PrebindPlugins map[string]struct{ Enabled bool } `json:"prebindPlugins"`
	}
	require.NoError(t, yaml.Unmarshal(content, &values))
	defaults := map[string]map[string]bool{"mutators": {}, "prebindPlugins": {}}
	for name, v := range values.Mutators {
		defaults["mutators"][name] = v.Enabled
	}
	for name, v := range values.PrebindPlugins {
		defaults["prebindPlugins"][name] = v.Enabled
	}
	program := compiledIn(t)
	assert.True(t, program["prebindPlugins"]["policy"], "the program needs the CustomResourceDefinition, which the chart installs on request")
	program["prebindPlugins"]["policy"] = false
	assert.Equal(t, program, defaults)

	for list, of := range defaults {
		for name, on := range of {
			t.Run(list+"/"+name, func(t *testing.T) {
				names, roles := toggled(t, list, fmt.Sprintf("%s.%s.enabled=%t", list, name, !on))
				want := name
				if on {
					want = "-" + name
				}
				switch {
				case list == "mutators":
					assert.Equal(t, []any{"*", want}, names)
				case name == "policy":
					assert.Empty(t, names, "the program has it on")
				default:
					assert.ElementsMatch(t, []any{"*", want, "-policy"}, names)
				}
				_, before := toggled(t, list)
				if on {
					assert.NotContains(t, roles, "prebind-"+name, "what is off has no permission")
				}
				if path := filepath.Join(root, chart, "files", "roles", name+".yaml"); fileExists(path) {
					assert.NotEqual(t, before, roles, "what has a role has it while it is on")
				} else {
					assert.Equal(t, before, roles)
				}
			})
		}
	}
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// checkedConfig is what the program says of a configuration.
func checkedConfig(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	var out bytes.Buffer
	cmd := app.NewCommand()
	cmd.SetArgs([]string{"config", "check", file})
	cmd.SetOut(&out)
	require.NoError(t, cmd.ExecuteContext(t.Context()), "in\n%s", content)
	return strings.TrimSpace(strings.TrimPrefix(out.String(), file+" is valid: "))
}

// compiledIn is what `prebind plugins` lists, and whether it is on by default.
func compiledIn(t *testing.T) map[string]map[string]bool {
	t.Helper()
	var out bytes.Buffer
	cmd := app.NewCommand()
	cmd.SetArgs([]string{"plugins"})
	cmd.SetOut(&out)
	require.NoError(t, cmd.ExecuteContext(t.Context()))
	found := map[string]map[string]bool{"mutators": {}, "prebindPlugins": {}}
	for _, line := range strings.Split(strings.TrimSpace(out.String()), "\n")[1:] {
		fields := strings.Fields(line)
		list := "prebindPlugins"
		if fields[1] == "mutator" {
			list = "mutators"
		}
		found[list][fields[0]] = fields[2] == "on"
	}
	return found
}

func TestChartRefuses(t *testing.T) {
	cases := map[string]struct {
		reason, values string
		// set is the flag that gives the values; empty is --set.
		set  string
		says []string
	}{
		"UnknownValue":     {reason: "an unused value", values: "replica=3", says: []string{"replica", "not allowed"}},
		"UnknownMutator":   {reason: "it would not run", values: "mutators.topologie.enabled=true", says: []string{"/mutators", "topologie", "not allowed"}},
		"UnknownPlugin":    {reason: "it would not run", values: "prebindPlugins.volumes.enabled=true", says: []string{"/prebindPlugins", "volumes", "not allowed"}},
		"UnknownPolicy":    {reason: "the API server would refuse it", values: "failurePolicy=Maybe", says: []string{"/failurePolicy", "'Fail', 'Ignore'"}},
		"UnknownMode":      {reason: "there would be no certificate", values: "certificates.mode=vault", says: []string{"/certificates/mode", "'certManager', 'selfManaged', 'files'"}},
		"NoReplicas":       {reason: "no pod would be bound", values: "replicas=0", says: []string{"/replicas", "1"}},
		"ReplicasWord":     {reason: "a number is needed", values: "replicas=two", says: []string{"/replicas", "integer"}},
		"TimeoutOverLimit": {reason: "the API server takes no more than 30 s", values: "timeoutSeconds=60", says: []string{"/timeoutSeconds", "30"}},
		"TimeoutUnderHold": {reason: "every wait would end in an error", values: "timeoutSeconds=5", says: []string{"/timeoutSeconds", "6"}},
		"NoSchedulers":     {reason: "no scheduler could bind a pod", set: "--set-json", values: "annotationPolicy.schedulers=[]", says: []string{"/annotationPolicy/schedulers", "1"}},
		"NoExemption":      {reason: "the API server would reject the FlowSchema", set: "--set-json", values: "flowSchema.schedulers=[]", says: []string{"/flowSchema/schedulers", "1"}},
		"Digest":           {reason: "the value is not a digest", values: "image.digest=latest", says: []string{"/image/digest"}},
		"FilesWithoutCA":   {reason: "the API server would trust no replica", values: "certificates.mode=files", says: []string{"certificates.files.caBundle"}},
		"TogglesInConfig":  {reason: "roles and configuration would differ", values: "config.mutators={topology}", says: []string{"config.mutators", ".Values.mutators"}},
		"UnknownField":     {reason: "no replica would start", values: "config.budgets.hodl=5s", says: []string{"/config/budgets", "hodl", "not allowed"}},
		"FieldType":        {reason: "no replica would start", values: "config.budgets.maxHolds=many", says: []string{"/config/budgets/maxHolds", "integer"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			set := tc.set
			if set == "" {
				set = "--set"
			}
			_, err := helmTemplate(t, set+"="+tc.values)
			require.Error(t, err, tc.reason)
			for _, words := range tc.says {
				assert.ErrorContains(t, err, words, tc.reason)
			}
		})
	}
}

// The Prometheus Operator's types are not at hand: the objects are compared as they
// are written.
func TestChartMonitoring(t *testing.T) {
	written := func(content []byte) map[string]any {
		found := map[string]any{}
		for document := range strings.SplitSeq(string(content), "\n---\n") {
			var o map[string]any
			require.NoError(t, yaml.Unmarshal([]byte(document), &o))
			metadata, ok := o["metadata"].(map[string]any)
			if kind := fmt.Sprint(o["kind"]); ok && (strings.HasPrefix(fmt.Sprint(o["apiVersion"]), "monitoring.coreos.com/") || metadata["name"] == "prebind-dashboard") {
				delete(o, "metadata")
				found[fmt.Sprint(kind, " ", metadata["namespace"], "/", metadata["name"])] = o
			}
		}
		return found
	}
	want, err := kustomize(t.Context(), overlay(t, []string{everything}, []string{"monitoring"}, nil))
	require.NoError(t, err)
	got, err := helmTemplate(t, "--set=monitoring.enabled=true,monitoring.labels.release=prometheus")
	require.NoError(t, err)
	require.Len(t, written(want), 3)
	assert.Equal(t, written(want), written(got))
	assert.Equal(t, 2, strings.Count(string(got), "release: prometheus"), "Prometheus finds both")
	elsewhere, err := helmTemplate(t, "--namespace=elsewhere", "--set=monitoring.enabled=true")
	require.NoError(t, err)
	assert.NotContains(t, strings.ReplaceAll(string(elsewhere), "--namespace=elsewhere", ""), "prebind-system")
	assert.Empty(t, func() map[string]any {
		without, err := helmTemplate(t)
		require.NoError(t, err)
		return written(without)
	}(), "a cluster without the operator would refuse them")
}

func TestChartLint(t *testing.T) {
	require.NoError(t, touch(filepath.Join(root, chart), filepath.Join(root, "tools.mod")))
	top, err := filepath.Abs(root)
	require.NoError(t, err)
	cmd, err := install.Tool(t.Context(), top, "helm", "lint", "--strict", "--kube-version=1.36.0", chart)
	require.NoError(t, err)
	out, err := cmd.CombinedOutput()
	assert.NoError(t, err, "%s", out)
}
