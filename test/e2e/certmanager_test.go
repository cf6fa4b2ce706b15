// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/install"
)

// secretOf contains the Secrets of the Certificates in config/webhook/certificates/cert-manager.
var secretOf = map[string]string{authority: "prebind-ca", serving: "prebind-webhook-tls"}

const authority, serving = "prebind-ca", "prebind-webhook"

// cert-manager issues the certificates of the shipped manifests, renews them and changes their CA. No bind of a steady stream
// fails.
func TestCertManager(t *testing.T) {
	t.Parallel()
	w := ownWorld(t, install.Options{CertManager: true}, 2)
	// kube-scheduler repeats the bind until the CA is injected.
	b := newBench(t, w, nil)
	b.pod(cluster.DefaultScheduler)
	b.assertTopology(b.untilBound())

	s := &certManagerLoad{load: beginLoad(t, w)}
	first := s.issued(authority)
	require.Equal(t, first, string(s.bundle()))

	// The serving certificate is renewed under the same CA.
	bundle := string(s.bundle())
	s.renew(serving)
	s.mount()
	assert.Equal(t, bundle, string(s.bundle()), "the CA should not change")

	// The CA is renewed and then, as documented, the serving certificate.
	leaf := s.issued(serving)
	s.renew(authority)
	s.untilBinds(20)
	assert.Equal(t, leaf, s.issued(serving), "a new CA should not affect the certificate that the old one signed")
	assert.Equal(t, bundle, string(s.bundle()), "the bundle should belong to the serving certificate")
	s.renew(serving)
	bundle += s.issued(authority)
	require.Eventually(t, func() bool { return string(s.bundle()) == bundle }, patience, again, "the injector should add the new CA and keep the old one")
	s.untilBinds(20) // The replicas serve the certificate of the old CA.
	s.mount()
	s.untilBinds(20)

	// An administrator removes the old CAs. cert-manager does not restore them.
	last := s.issued(authority)
	require.NotEqual(t, first, last)
	s.setBundle([]byte(last))
	s.untilBinds(20)
	s.end()
	assert.Equal(t, last, string(s.bundle()))

	// kubectl apply of the manifests, as in an upgrade, does not change the bundle.
	generation := s.configuration().Generation
	require.NoError(t, w.prebind.Register(t.Context()))
	assert.Equal(t, generation, s.configuration().Generation, "the webhook configuration should not change")
}

// certManagerLoad is a stream of binds while cert-manager changes certificates.
type certManagerLoad struct{ *load }

// renew requests another certificate and waits for it.
func (s *certManagerLoad) renew(certificate string) {
	s.t.Helper()
	old := s.issued(certificate)
	require.NoError(s.t, s.prebind.Renew(s.t.Context(), certificate))
	require.Eventually(s.t, func() bool {
		now := s.issued(certificate)
		return now != "" && now != old
	}, patience, again, "cert-manager should issue another certificate for %s", certificate)
}

// issued returns the certificate in the Secret of the Certificate, or an empty text if the Secret does not exist.
func (s *certManagerLoad) issued(certificate string) string {
	secret, err := s.client.CoreV1().Secrets(install.Namespace).Get(s.t.Context(), secretOf[certificate], metav1.GetOptions{})
	if err != nil {
		return ""
	}
	return string(secret.Data[corev1.TLSCertKey])
}

// mount updates the files of the replicas, like the kubelet, and waits until the replicas serve the certificate.
func (s *certManagerLoad) mount() {
	s.t.Helper()
	require.NoError(s.t, s.prebind.MountVolumes(s.t.Context()))
	serial := certificatesOf([]byte(s.issued(serving)))[0].SerialNumber.String()
	s.untilServed(func(now string) bool { return now == serial }, "the certificate in the Secret")
}
