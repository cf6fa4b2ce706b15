// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
)

// firstInstallation is the kustomization that docs/install.md applies before config/webhook.
const firstInstallation = "config/first-install"

// During the two steps of docs/install.md, with 20 binds per second, no bind fails before a replica exists, while replicas start,
// or after the switch to mode Enforce and failurePolicy Fail.
func TestFirstInstallation_NoBindFails(t *testing.T) {
	t.Parallel()
	c := ownCluster(t, cluster.Options{})
	client := c.Client()
	w := &world{cluster: c, client: client}
	require.NoError(t, cluster.CreateNodes(t.Context(), client, cluster.Nodes("node", 6)...))

	s := newStream(t, w, "1s")
	some := func() {
		t.Helper()
		last := s.answered()
		require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Greater(c, s.answered(), last+atLeast/5) }, patience, again)
	}
	s.during(func() {
		some()
		var err error
		w.prebind, err = install.New(t.Context(), install.Options{Cluster: c, Binary: shared.prebind.Binary(), Kustomization: firstInstallation})
		require.NoError(t, err)
		w.killAfter(t)
		some() // The API server calls a webhook that no replica serves.
		for range 2 {
			_, err := w.start(t.Context())
			require.NoError(t, err)
		}
		some()
		require.NoError(t, w.prebind.Apply(t.Context(), "config/webhook"))
		require.NoError(t, w.prebind.Rollout(t.Context(), w.args...))
		some()
	})

	config, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), webhookConfiguration, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, new(admissionregistrationv1.Fail), config.Webhooks[0].FailurePolicy)
	assert.NotEmpty(t, config.Webhooks[0].ClientConfig.CABundle, "the second step keeps the injected CA")
	first, err := client.CoreV1().Pods(s.ns).Get(t.Context(), "pod-2", metav1.GetOptions{})
	require.NoError(t, err)
	assert.NotContains(t, first.Annotations, "topology.prebind.dev/hostname")
	last, err := client.CoreV1().Pods(s.ns).Get(t.Context(), fmt.Sprintf("pod-%d", s.posted/10*10-1), metav1.GetOptions{})
	require.NoError(t, err)
	assert.Contains(t, last.Annotations, "topology.prebind.dev/hostname")

	require.NoError(t, w.prebind.Stop())
	_, err = s.createPod("unbound", byHand)
	require.NoError(t, err)
	require.Error(t, s.bindByHand(gen.Binding(gen.Pod("unbound", gen.InNamespace(s.ns)), "node-1")))
	s.assertAlertsSelectMetrics()
}

var selector = regexp.MustCompile(`(apiserver_\w+)\{([^}]*)\}`)

// assertAlertsSelectMetrics checks that the alerts' selectors of the API server's metrics match series that the API
// server has after calls that succeeded, failed, and were ignored.
func (b *bench) assertAlertsSelectMetrics() {
	b.t.Helper()
	rules, err := os.ReadFile("../../config/webhook/monitoring/prometheusrule.yaml")
	require.NoError(b.t, err)
	metrics, err := b.client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(b.t.Context())
	require.NoError(b.t, err)
	found := selector.FindAllStringSubmatch(string(rules), -1)
	require.NotEmpty(b.t, found)
	for _, f := range found {
		assert.True(b.t, slices.ContainsFunc(strings.Split(string(metrics), "\n"), func(line string) bool {
			return strings.HasPrefix(line, f[1]+"{") && !slices.ContainsFunc(strings.Split(f[2], ","), func(m string) bool {
				label, value, equal := strings.Cut(m, `="`)
				if !equal {
					return true
				}
				name, negated := strings.CutSuffix(label, "!")
				return !strings.Contains(line, name+`="`) || negated == strings.Contains(line, name+`="`+value)
			})
		}), "no series of the API server matches %s", f[0])
	}
}
