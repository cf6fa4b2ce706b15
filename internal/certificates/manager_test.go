// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"crypto/x509"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/cert"
)

func TestManager_RestoresChangedObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, webhooks(nil))
		a, b := w.start(times), w.start(times)
		pass(time.Second)
		first := w.record()
		bundle, err := cert.EncodeCertificates(first.bundle...)
		require.NoError(t, err)

		// kubectl apply of the shipped manifests removes the bundle.
		w.setConfig(func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			c.Webhooks[0].ClientConfig.CABundle = nil
		})
		pass(2 * defaultPeriod)
		assert.Equal(t, bundle, w.config().Webhooks[0].ClientConfig.CABundle)

		w.setConfig(func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			c.Webhooks = append(c.Webhooks, webhooks(nil).Webhooks...)
			c.Webhooks[1].Name = "another.prebind.dev"
		})
		pass(2 * defaultPeriod)
		assert.Equal(t, bundle, w.config().Webhooks[1].ClientConfig.CABundle, "the bundle is in every webhook of the configuration")
		want := webhooks(bundle, bundle)
		want.Webhooks[1].Name = "another.prebind.dev"
		assert.Equal(t, want.Webhooks, w.config().Webhooks, "nothing else changes")

		served := a.served.Load()
		require.NoError(t, w.client.Delete(t.Context(), w.secret()))
		pass(2 * defaultPeriod)
		second := w.record()
		assert.Equal(t, []*x509.Certificate{second.current.cert, first.current.cert}, second.bundle, "a replica creates another CA")

		w.setSecret(func(s *corev1.Secret) { s.Data = map[string][]byte{"tls.crt": []byte("x")} })
		pass(2 * defaultPeriod)
		assert.Equal(t, append([]*x509.Certificate{w.record().current.cert}, second.bundle...), w.record().bundle, "a replica creates another CA")
		assert.Same(t, served, a.served.Load(), "the API servers may not have the new CA yet")
		pass(2 * times.Overlap)
		assert.Equal(t, w.record().current.cert, a.served.Load().by.cert)
		a.stop()
		b.stop()
		assert.Contains(t, a.log.String()+b.log.String(), "is not valid", "the first that sees it replaces it")
	})
}

// TestManager_MissingConfiguration checks that replicas wait for a webhook configuration and log once.
func TestManager_MissingConfiguration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.start(times)
		pass(time.Hour)
		require.ErrorContains(t, r.ready(), "missing MutatingWebhookConfiguration prebind")
		_, err := r.getCertificate(nil)
		require.ErrorContains(t, err, "no certificate that the API server trusts")
		require.NoError(t, w.client.Create(t.Context(), webhooks(nil)))
		pass(2 * defaultPeriod)
		require.NoError(t, r.ready())
		served, err := r.getCertificate(nil)
		require.NoError(t, err)
		assert.Equal(t, []string{"prebind-webhook.prebind-system.svc", "prebind-webhook.prebind-system.svc.cluster.local"}, served.Leaf.DNSNames)
		assert.Equal(t, served.Leaf.NotAfter.Unix(), expires(r, Serving))
		assert.Equal(t, w.record().current.cert.NotAfter.Unix(), expires(r, CA))

		require.NoError(t, w.client.Delete(t.Context(), w.config()))
		pass(time.Minute)
		require.NoError(t, r.ready(), "a replica with a certificate stays ready")
		r.stop()
		assert.Equal(t, 2, strings.Count(r.log.String(), "Waiting for the webhook configuration"), "the replica logs one line each time it waits:\n%s", r.log)
	})
}

// TestManager_CertManager checks that Prebind does not write a bundle that cert-manager writes.
func TestManager_CertManager(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := webhooks([]byte("its own"))
		c.Annotations = map[string]string{"cert-manager.io/inject-ca-from": "prebind-system/prebind-webhook"}
		w := newWorld(t, c)
		r := w.start(times)
		pass(time.Minute)
		require.ErrorContains(t, r.ready(), "cert-manager.io/inject-ca-from")
		assert.Equal(t, "its own", string(w.config().Webhooks[0].ClientConfig.CABundle))
		w.setConfig(func(c *admissionregistrationv1.MutatingWebhookConfiguration) { c.Annotations = nil })
		pass(2 * defaultPeriod)
		require.NoError(t, r.ready())
		r.stop()
	})
}

// expires is the recorded expiration time of the certificate.
func expires(r *replica, certificate string) int64 {
	return int64(testutil.ToFloat64(r.Metrics.expiration.WithLabelValues(certificate)))
}
