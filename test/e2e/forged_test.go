// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/tls"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
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
	w := ownWorld(t, install.Options{Cluster: c}, 1, "--mutators=*,bind-info", "--client-ca-file="+c.CAFile(), "--client-allowed-names="+apiServer)
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
	review := gen.Review(b.binding("node-1", gen.UID(pod.UID)), kubeScheduler, false)
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

// testExplainRole checks that the optional ClusterRole permits kubectl prebind explain in one namespace, but not a bind.
func testExplainRole(t *testing.T, w *world) {
	require.NoError(t, w.prebind.AddComponents(t.Context(), "explain"))
	b, other := newBench(t, w, nil), newBench(t, w, nil)
	const user = "ana"
	grant := func(namespace string) {
		b.kubectl("create", "rolebinding", "explain", "--namespace="+namespace, "--clusterrole=prebind-explain", "--user="+user)
	}
	grant(b.ns)
	config := rest.CopyConfig(w.cluster.Config())
	config.Impersonate.UserName = user
	ana, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)

	// No pod has this name, so no bind succeeds before the policy is in force.
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		err := ana.CoreV1().Pods(b.ns).Bind(t.Context(), b.binding("node-1"), metav1.CreateOptions{})
		assert.ErrorContains(c, err, "permits only dry runs")
	}, patience, again, "the policy should be in force")

	b.claim("data", b.dynamic("10m"))
	b.pod(byHand, "data")
	other.pod(byHand)
	out, errs, code := b.command("explain", "pod", "--node=node-1", "-n="+b.ns, "--as="+user)
	assert.Equal(t, 1, code, "%s", errs)
	assert.Contains(t, out, "waiting for PersistentVolumeClaim "+b.ns+"/data")

	err = ana.CoreV1().Pods(b.ns).Bind(t.Context(), b.binding("node-1"), metav1.CreateOptions{})
	assert.True(t, apierrors.IsForbidden(err), "%v", err)
	assert.ErrorContains(t, err, user+": the ClusterRole prebind-explain permits only dry runs of Bindings")
	assert.NotContains(t, b.getClaim("data").Annotations, volume.AnnSelectedNode, "Prebind prepares nothing for a rejected Binding")

	_, errs, code = b.command("explain", "pod", "--node=node-1", "-n="+other.ns, "--as="+user)
	assert.Equal(t, 3, code, "a tenant cannot read the pods of another")
	assert.Contains(t, errs, "cannot get resource \"pods\"")

	_, err = ana.EventsV1().Events(b.ns).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err, "explain without --node reads events")
	_, errs, code = b.command("top", "--once", "--as="+user)
	assert.NotEqual(t, 0, code, "a tenant cannot see the binds of others")
	assert.Contains(t, errs, "leases")
	grant(install.Namespace)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		_, errs, code := b.command("top", "--once", "--as="+user)
		assert.Equal(c, 0, code, "%s", errs)
	}, patience, again)

	require.NoError(t, other.bindByHand(other.binding("node-1")), "administrators can bind")
	scheduled := newBench(t, w, nil)
	scheduled.pod(cluster.DefaultScheduler)
	scheduled.untilBound()
}
