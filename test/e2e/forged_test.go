// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/tls"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/gencert"
	"github.com/prebind/prebind/test/install"
)

// apiServer is the name in the API server's client certificate.
const apiServer = "kube-apiserver"

// TestProtections uses the optional protections of docs/security.md together: client certificates, and the policies for explanations and
// annotations.
func TestProtections(t *testing.T) {
	t.Parallel()
	c := ownCluster(t, cluster.Options{Audit: true, WebhookClient: apiServer})
	w := ownWorldWith(t, install.Options{Cluster: c}, 1, "--mutators=*,bind-info", "--client-ca-file="+c.CAFile(), "--client-allowed-names="+apiServer)
	t.Run("client certificates", func(t *testing.T) { testOnlyAPIServerCalls(t, w) })
	t.Run("explain role", func(t *testing.T) { testExplainRole(t, w) })
	t.Run("annotation policy", func(t *testing.T) { testAnnotationPolicy(t, w) })
}

// With --client-ca-file, Prebind accepts only reviews of the API server.
func testOnlyAPIServerCalls(t *testing.T, w *world) {
	bound := newBench(t, w, nil)
	bound.claim("data", bound.dynamic("0s"))
	bound.pod(cluster.DefaultScheduler, "data")
	bound.assertTopology(bound.untilBound())

	b := newBench(t, w, nil)
	b.claim("data", b.dynamic("0s"))
	pod := b.podWith(byHand, gen.UsesClaim("data"))
	review := b.reviewOf(b.binding("node-1", gen.UID(pod.UID)), false)
	before, replica := b.state(), w.prebind.Replicas()[0]

	stranger := gencert.NewCA(t, "stranger").Sign(t, apiServer).TLS(t)
	refused := map[string]struct {
		client *tls.Certificate
		says   string
	}{
		"no certificate": {says: "certificate required"},
		"another CA's":   {client: &stranger, says: "unknown certificate authority"},
		"a kubelet's":    {client: b.certificateOf("system:node:node-1"), says: `client certificate \"system:node:node-1\" is not allowed to call`},
	}
	for name, tc := range refused {
		_, err := ask(t.Context(), replica, tc.client, review)
		assert.ErrorContains(t, err, tc.says, name)
	}
	assert.Equal(t, before, b.state(), "no object should be written")

	// The same review from the API server provisions the volume of the claim.
	_, err := ask(t.Context(), replica, b.certificateOf(apiServer), review)
	require.NoError(t, err)
	assert.Equal(t, "node-1", b.untilSelected())
}

// state contains all objects that a forged review could change: the versions of pod and claim, and the number of events.
func (b *bench) state() map[string]string {
	b.t.Helper()
	pod, claim := b.getPod(), b.getClaim("data")
	about := 0
	for _, e := range b.events() {
		if says([]string{e}, "Bind") || says([]string{e}, "PreBind") {
			about++
		}
	}
	return map[string]string{
		"pod": fmt.Sprint(pod.Annotations, pod.Labels), "claim": claim.Annotations[volume.AnnSelectedNode], "events": fmt.Sprint(about),
	}
}

// certificateOf returns a client certificate that the cluster's CA has signed.
func (b *bench) certificateOf(user string) *tls.Certificate {
	b.t.Helper()
	config, err := b.cluster.UserConfig(user)
	require.NoError(b.t, err)
	pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
	require.NoError(b.t, err)
	return &pair
}
