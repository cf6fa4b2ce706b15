// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/cert"

	"github.com/prebind/prebind/internal/certificates"
	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/install"
)

const (
	webhookConfiguration = "prebind"
	// serverName is the name with which the API server calls the webhook.
	serverName = "prebind-webhook.prebind-system.svc"
)

// Prebind issues the certificates itself, renews them, and changes its CA. No bind of a steady stream fails. TestCertManager shows this for
// certificates from files.
func TestSelfManagedCertificates(t *testing.T) {
	t.Parallel()
	w := ownWorld(t, install.Options{Kustomization: "config/webhook/overlays/self-managed", WithoutCertManager: true}, 2,
		"--self-managed-cert-validity=12s", "--self-managed-ca-overlap=2s", "--self-managed-ca-validity=10m")
	s := beginLoad(t, w)
	ca := func() string {
		secret, err := w.client.CoreV1().Secrets(install.Namespace).Get(t.Context(), certificates.SecretName, metav1.GetOptions{})
		if err != nil {
			return ""
		}
		return string(secret.Data[corev1.TLSCertKey])
	}
	first := ca()
	require.NotEmpty(t, first)
	assert.Equal(t, first, string(s.bundle()))

	s.mu.Lock()
	before := slices.Collect(maps.Values(s.seen))
	s.mu.Unlock()
	s.untilServed(func(serial string) bool { return !slices.Contains(before, serial) }, "renewed certificates")

	// A request for a new CA and the deletion of the Secret do not affect binds.
	changed := func(what string) {
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			assert.NotContains(c, []string{"", first}, ca(), what)
			assert.Len(c, certificatesOf(s.bundle()), 2)
		}, patience, 50*time.Millisecond, "the bundle should contain the new CA")
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			assert.Equal(c, ca(), string(s.bundle()))
		}, patience, 100*time.Millisecond, "the earlier CA should be dropped")
		first = ca()
	}
	_, err := w.client.CoreV1().Secrets(install.Namespace).Patch(t.Context(), certificates.SecretName, types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"`+certificates.RotateAnnotation+`":"now"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	changed("an operator requested a new CA")
	require.NoError(t, w.client.CoreV1().Secrets(install.Namespace).Delete(t.Context(), certificates.SecretName, metav1.DeleteOptions{}))
	changed("the Secret was deleted")
	expires := strconv.FormatFloat(float64(certificatesOf([]byte(ca()))[0].NotAfter.Unix()), 'g', -1, 64)
	w.untilMetric(t, `prebind_certificate_expiration_timestamp_seconds{certificate="ca"} `+expires)
	s.end()

	// kubectl apply of the manifests, as in an upgrade, does not change the bundle.
	generation := s.configuration().Generation
	require.NoError(t, w.prebind.Register(t.Context()))
	assert.Equal(t, generation, s.configuration().Generation, "the webhook configuration should not change")
	// Prebind restores a removed bundle immediately. Binds may fail until then.
	good := s.bundle()
	s.setBundle(nil)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Equal(c, string(good), string(s.bundle()))
	}, patience, 20*time.Millisecond, "the bundle should be written again")
}

// load is a stream of binds. It also continuously verifies each replica's certificate, like the API server for a new connection.
type load struct {
	*stream
	looking sync.WaitGroup

	looks    int
	mistrust []string
	// seen contains the serial number of each replica's current certificate.
	seen map[string]string
}

func beginLoad(t *testing.T, w *world) *load {
	t.Helper()
	s := &load{stream: newStream(t, w, "1s"), seen: map[string]string{}}
	s.begin()
	s.looking.Go(s.look)
	s.untilBinds(10)
	return s
}

// end stops the stream and checks the results.
func (s *load) end() {
	s.t.Helper()
	s.stream.end()
	s.looking.Wait()
	assert.Empty(s.t, s.mistrust)
	assert.Greater(s.t, s.looks, 50)
	for _, e := range s.allEvents() {
		assert.NotContains(s.t, e, "webhook", "no bind of a kube-scheduler should fail")
	}
	s.t.Logf("%d handshakes, %d not trusted", s.looks, len(s.mistrust))
}

// look repeatedly connects to each replica. Each connection trusts the current CA bundle of the webhook configuration.
func (s *load) look() {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(s.bundle())
		for _, r := range s.prebind.Replicas() {
			dialer := tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: serverName}}
			raw, err := dialer.DialContext(s.t.Context(), "tcp", r.WebhookAddress())
			s.mu.Lock()
			s.looks++
			if conn, ok := raw.(*tls.Conn); ok && err == nil {
				s.seen[r.Name()] = conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
				_ = conn.Close()
			} else {
				s.mistrust = append(s.mistrust, fmt.Sprintf("%s: %v", r.Name(), err))
			}
			s.mu.Unlock()
		}
	}
}

func (s *load) untilServed(want func(serial string) bool, what string) {
	s.t.Helper()
	require.EventuallyWithT(s.t, func(c *assert.CollectT) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for name, serial := range s.seen {
			assert.True(c, want(serial), "%s serves %s", name, serial)
		}
	}, patience, 50*time.Millisecond, "every replica should serve %s", what)
}

// untilBinds waits for the given number of further binds.
func (s *load) untilBinds(n int) {
	s.t.Helper()
	before := s.answered()
	require.Eventually(s.t, func() bool { return s.answered() >= before+n }, patience, 50*time.Millisecond)
}

// bundle returns the CA bundle that the API server trusts, or nil if it cannot be read.
func (s *load) bundle() []byte {
	if config := s.configuration(); len(config.Webhooks) > 0 {
		return config.Webhooks[0].ClientConfig.CABundle
	}
	return nil
}

// configuration returns the webhook configuration, which is empty if it cannot be read. It is safe for concurrent use.
func (s *load) configuration() *admissionregistrationv1.MutatingWebhookConfiguration {
	config, err := s.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(s.t.Context(), webhookConfiguration, metav1.GetOptions{})
	if err != nil {
		return &admissionregistrationv1.MutatingWebhookConfiguration{}
	}
	return config
}

func (s *load) setBundle(bundle []byte) {
	s.t.Helper()
	patch, err := json.Marshal([]map[string]any{{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}})
	require.NoError(s.t, err)
	_, err = s.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Patch(s.t.Context(), webhookConfiguration, types.JSONPatchType, patch, metav1.PatchOptions{})
	require.NoError(s.t, err)
}

// certificatesOf returns the certificates of a bundle, or none if it cannot be parsed.
func certificatesOf(bundle []byte) []*x509.Certificate {
	list, _ := cert.ParseCertsPEM(bundle)
	return list
}

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
