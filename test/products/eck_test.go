// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package products

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	esv1 "github.com/elastic/cloud-on-k8s/v3/pkg/apis/elasticsearch/v1"
	"github.com/elastic/cloud-on-k8s/v3/pkg/controller/common/metadata"
	"github.com/elastic/cloud-on-k8s/v3/pkg/controller/elasticsearch/initcontainer"
	"github.com/elastic/cloud-on-k8s/v3/pkg/controller/elasticsearch/nodespec"
	"github.com/elastic/cloud-on-k8s/v3/pkg/controller/elasticsearch/settings"
	"github.com/elastic/cloud-on-k8s/v3/pkg/controller/elasticsearch/stackconfig"
	"github.com/elastic/cloud-on-k8s/v3/pkg/utils/k8s"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// The policy writes the annotation that Elasticsearch reads its zone from, and for which ECK's init container waits. The cluster
// is the shipped example.
func TestECK(t *testing.T) {
	const rack = "example.com/rack"
	content, err := os.ReadFile(filepath.Join(root, "config", "policies", "eck-node-labels", "elasticsearch.yaml"))
	require.NoError(t, err)
	es := esv1.Elasticsearch{ObjectMeta: metav1.ObjectMeta{Namespace: "search"}}
	require.NoError(t, yaml.UnmarshalStrict(content, &es))
	nodeSet := es.Spec.NodeSets[0]
	scripts := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: es.Namespace, Name: esv1.ScriptsConfigMap(es.Name)}}
	pod, err := nodespec.BuildPodTemplateSpec(t.Context(), k8s.NewFakeClient(scripts), es, nodeSet, settings.NewCanonicalConfig(),
		nil, true, stackconfig.PolicyConfig{}, metadata.Metadata{}, "", false)
	require.NoError(t, err)
	script, err := initcontainer.RenderPrepareFsScript(es.DownwardNodeLabels())
	require.NoError(t, err)

	require.Equal(t, rack, annotationOf(t, &pod, esv1.ElasticsearchContainerName, settings.EnvZone))
	requireWritten(t, map[string]string{rack: "rack-7"}, "eck-node-labels", &pod, map[string]string{rack: "rack-7"})
	assert.Equal(t, 0, prepare(t, script, rack, "rack-7"))
	assert.Equal(t, waits, prepare(t, script, "example.com/row", "row-2"), "the init container waits only for the annotation of the policy")
}

// waits is the exit code of prepare for a script that waits.
const waits = 75

// prepare runs the script of ECK's init container in a pod with the annotation, and returns its exit code. It exits instead of
// waiting, and does not change owners, which only a container can.
func prepare(t *testing.T, script, key, value string) int {
	t.Helper()
	container := t.TempDir()
	for name, content := range map[string]string{
		"/usr/share/elasticsearch/LICENSE.txt":                                  "ELASTIC LICENSE AGREEMENT",
		"/mnt/elastic-internal/transport-certificates/transport.certs.disabled": "",
		"/mnt/elastic-internal/elasticsearch-config-local/jvm.options":          "",
		// The format of the kubelet.
		"/mnt/elastic-internal/downward-api/annotations": fmt.Sprintf("%s=%q\n", key, value),
	} {
		file := filepath.Join(container, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	}
	script = strings.NewReplacer("/usr/share/", container+"/usr/share/", "/mnt/", container+"/mnt/").Replace(script)
	command := exec.CommandContext(t.Context(), "bash", "-c", fmt.Sprintf("sleep() { exit %d; }; chown() { :; }; %s", waits, script))
	command.Env = append(os.Environ(), "POD_NAME=logs-es-default-0")
	output, _ := command.CombinedOutput()
	t.Logf("%s", output)
	return command.ProcessState.ExitCode()
}
