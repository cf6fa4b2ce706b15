// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/cmd/prebind/app"
	"github.com/prebind/prebind/docs/example/after"
	"github.com/prebind/prebind/docs/example/rack"
	"github.com/prebind/prebind/test/install"
)

const chart = "charts/prebind"

// helmTemplate renders the chart, in prebind-system unless the arguments say
// otherwise.
func helmTemplate(t *testing.T, args ...string) ([]byte, error) {
	t.Helper()
	touch(t, filepath.Join(root, chart), filepath.Join(root, "tools.mod"))
	top, err := filepath.Abs(root)
	require.NoError(t, err)
	return install.RenderChart(t.Context(), top, append([]string{"--namespace=" + namespace}, args...)...)
}

// TestChartToggles checks that the values have the mutators and plugins of the program with its defaults, and that the program accepts
// the configuration of a chart in which each of them is toggled. A toggled component has its role only while it is on.
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

	var args []string
	for list, of := range defaults {
		for name, on := range of {
			args = append(args, fmt.Sprintf("--set=%s.%s.enabled=%t", list, name, !on))
		}
	}
	toggled := rendered(t, args...)
	compare(t, "chart-toggled", difference(toggled, rendered(t)))
	require.NoError(t, checkConfig(t, toggled))

	removed := strings.Join(rendered(t, "--set=prebindPlugins.volumebinding=null,webhookAnnotations=null"), "")
	assert.NotContains(t, removed, "volumebinding", "a plugin without a value is off, and has no role")
	none := strings.Join(rendered(t, "--set=mutators.topology.enabled=false"), "")
	assert.Contains(t, none, "mutators: []", "null would be the default list")
}

// TestChartExtra checks that a build with another plugin and mutator accepts the configuration of a chart that switches them on, and that the
// program does not.
func TestChartExtra(t *testing.T) {
	extra := rendered(t, "--set=extraPlugins={after},config.arguments.after.maxAge=1h,extraMutators={rack}")
	require.NoError(t, checkConfig(t, extra, app.WithPlugin(after.Registration()), app.WithMutator(rack.Registration())))
	require.Error(t, checkConfig(t, extra))
}

// Argo CD runs the Job also when it deletes an Application without its resources.
func TestChartUnregister(t *testing.T) {
	job := func(args ...string) bool {
		return slices.ContainsFunc(rendered(t, args...), func(document string) bool { return nameOf(document) == "Job prebind-unregister" })
	}
	assert.True(t, job())
	assert.False(t, job("--set=unregisterOnDelete=false"))
	assert.False(t, job("--set=createNamespace=true"))
}

// checkConfig runs the command config check of the program with the options.
func checkConfig(t *testing.T, documents []string, options ...app.Option) error {
	t.Helper()
	for _, document := range documents {
		if nameOf(document) == "ConfigMap prebind-config" {
			var config corev1.ConfigMap
			require.NoError(t, yaml.Unmarshal([]byte(document), &config))
			file := filepath.Join(t.TempDir(), "config.yaml")
			require.NoError(t, os.WriteFile(file, []byte(config.Data["config.yaml"]), 0o600))
			cmd := app.NewCommand(options...)
			cmd.SetArgs([]string{"config", "check", file})
			return cmd.ExecuteContext(t.Context())
		}
	}
	return errors.New("the chart has no configuration")
}

// valuesInComments are the Helm values of Prebind in the first comment of an example.
var valuesInComments = regexp.MustCompile(`Helm values(?: of Prebind)?:\n#\n((?:#   .*\n)+)`)

// TestChartExamples checks that each example workload names Helm values of Prebind, and that the chart and the program accept them
// and then change binds.
func TestChartExamples(t *testing.T) {
	examples, err := filepath.Glob(filepath.Join(root, "docs/manifests/*.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, examples)
	for _, name := range []string{
		"rack-awareness/strimzi-kafka.yaml", "eck-node-labels/elasticsearch.yaml", "ray-topology/raycluster.yaml", "slinky-topology/nodeset.yaml",
	} {
		examples = append(examples, filepath.Join(root, "config/policies", name))
	}
	for _, example := range examples {
		t.Run(filepath.Base(example), func(t *testing.T) {
			content, err := os.ReadFile(example)
			require.NoError(t, err)
			found := valuesInComments.FindSubmatch(content)
			require.NotNil(t, found, "the example should name the Helm values of Prebind")
			values := bytes.ReplaceAll(found[1], []byte("#   "), nil)
			file := filepath.Join(t.TempDir(), "values.yaml")
			require.NoError(t, os.WriteFile(file, values, 0o600))
			objects := rendered(t, "--values="+file)
			require.NoError(t, checkConfig(t, objects))
			assert.Contains(t, strings.Join(objects, ""), "mode: Enforce", "in the default mode, the pod gets no annotations")
		})
	}
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

// TestChartNotes checks what `helm install` and `helm upgrade` print: what runs, what to do next, and what an upgrade needs.
func TestChartNotes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "prebind")
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join(root, chart))))
	// `helm template` omits NOTES.txt itself.
	wrapper := "notes: |\n  {{- include (print $.Template.BasePath \"/NOTES.txt\") . | nindent 2 }}\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "templates/notes.yaml"), []byte(wrapper), 0o600))
	top, err := filepath.Abs(root)
	require.NoError(t, err)
	upgrade, err := os.ReadFile(filepath.Join(dir, "files/upgrade.txt"))
	require.NoError(t, err)
	for name, tc := range map[string]struct {
		reason            string
		args, says, lacks []string
	}{
		"Install": {
			reason: "a first installation reports only", args: []string{"--namespace=prebind-system"},
			says:  []string{"runs in mode Audit with failurePolicy Ignore", "changes no bind", "\n  kubectl prebind status\n", "install.md#roll-out", "prebind-system, kube-system, cert-manager, and"},
			lacks: []string{"upgrade", "emergency", "Secret"},
		},
		"Upgrade": {
			reason: "actions come first", args: []string{"--is-upgrade", "--namespace=elsewhere", "--set=config.mode=Enforce,failurePolicy=Fail"},
			says:  []string{string(upgrade), "runs in mode Enforce with failurePolicy Fail", "In an emergency", "--prebind-namespace elsewhere"},
			lacks: []string{"install.md#roll-out"},
		},
		"AuditFail": {
			reason: "an upgrade with the old value Fail can stop binds, also in mode Audit", args: []string{"--is-upgrade", "--set=failurePolicy=Fail"},
			says: []string{"changes no bind. While no replica answers, no pod outside the exempt namespaces is bound. In an emergency:\n"},
		},
		"EnforceIgnore": {
			reason: "the last step is missing", args: []string{"--set=config.mode=Enforce,clientCA.enabled=true,certificates.mode=files,certificates.files.caBundle=" + caBundle},
			says: []string{"pods are bound without it", "install.md#roll-out", "the Secret prebind-webhook-tls exists", "the ConfigMap prebind-client-ca"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			cmd, err := install.Tool(t.Context(), top, "helm", append([]string{"template", "prebind", dir, "--kube-version=1.37.0", "--show-only=templates/notes.yaml"}, tc.args...)...)
			require.NoError(t, err)
			out, err := cmd.Output()
			require.NoError(t, err)
			var rendered struct{ Notes string }
			require.NoError(t, yaml.Unmarshal(out, &rendered))
			for _, words := range tc.says {
				assert.Contains(t, rendered.Notes, words, tc.reason)
			}
			for _, words := range tc.lacks {
				assert.NotContains(t, rendered.Notes, words, tc.reason)
			}
		})
	}
}

func TestChartRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, values string
		// set is the flag that gives the values; empty is --set.
		set  string
		says []string
	}{
		"UnknownValue":     {reason: "an unused value", values: "replica=3", says: []string{"replica", "not allowed"}},
		"UnknownMutator":   {reason: "it would not run", values: "mutators.topologie.enabled=true", says: []string{"/mutators", "topologie", "not allowed"}},
		"UnknownPolicy":    {reason: "the API server would reject it", values: "failurePolicy=Maybe", says: []string{"/failurePolicy", "'Fail', 'Ignore'"}},
		"NoReplicas":       {reason: "no pod would be bound", values: "replicas=0", says: []string{"/replicas", "1"}},
		"ModeWord":         {reason: "no replica would start", values: "config.mode=Audti", says: []string{"/config/mode", "Audit"}},
		"TimeoutOverLimit": {reason: "the API server takes no more than 30 s", values: "timeoutSeconds=60", says: []string{"/timeoutSeconds", "30"}},
		"TimeoutUnderHold": {reason: "every wait would end in an error", values: "timeoutSeconds=5", says: []string{"/timeoutSeconds", "6"}},
		"NoSchedulers":     {reason: "no scheduler could bind a pod", set: "--set-json", values: "annotationPolicy.schedulers=[]", says: []string{"/annotationPolicy/schedulers", "1"}},
		"Digest":           {reason: "the value is not a digest", values: "image.digest=latest", says: []string{"/image/digest"}},
		"FilesWithoutCA":   {reason: "the API server would trust no replica", values: "certificates.mode=files", says: []string{"certificates.files.caBundle"}},
		"TogglesInConfig":  {reason: "roles and configuration would differ", values: "config.mutators={topology}", says: []string{"config.mutators", ".Values.mutators"}},
		"BuiltInExtra":     {reason: "a plugin could be on and off", values: "extraPlugins={device}", says: []string{"device is not extra", "prebindPlugins.device.enabled"}},
		"UnknownField":     {reason: "no replica would start", values: "config.budgets.hodl=5s", says: []string{"/config/budgets", "hodl", "not allowed"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := helmTemplate(t, cmp.Or(tc.set, "--set")+"="+tc.values)
			require.Error(t, err, tc.reason)
			for _, words := range tc.says {
				assert.ErrorContains(t, err, words, tc.reason)
			}
		})
	}
}
