// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
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

	"github.com/prebind/prebind/test/gencert"
	"github.com/prebind/prebind/test/install"
	"github.com/prebind/prebind/webhook/certificates/selfmanaged"
)

const (
	webhookConfiguration = "prebind"
	// serverName is what the API server calls the webhook by.
	serverName = "prebind-webhook.prebind-system.svc"
)

// Certificates are renewed and CAs are changed, in each of the ways that they can
// come, under a steady stream of binds: no bind fails.
func TestCertificateRotationUnderLoad(t *testing.T) {
	t.Parallel()
	t.Run("from files", func(t *testing.T) {
		t.Parallel()
		w := ownWorld(t, 2)
		t.Run("cert-manager", func(t *testing.T) { testCertManagerRenews(t, w) })
		t.Run("by hand", func(t *testing.T) { testFilesByHand(t, w) })
	})
	t.Run("self-managed", func(t *testing.T) {
		t.Parallel()
		testSelfManaged(t, ownWorldWith(t, install.Options{Kustomization: "config/webhook/overlays/self-managed", WithoutCertManager: true}, 2,
			"--self-managed-cert-validity=12s", "--self-managed-ca-overlap=2s", "--self-managed-ca-validity=10m"))
	})
}

// cert-manager renews the certificate long before it ends, under the same CA.
func testCertManagerRenews(t *testing.T, w *world) {
	s := beginLoad(t, w)
	for i := range 3 {
		before := s.served()
		require.NoError(t, w.prebind.RenewCertificate(t.Context()))
		s.untilServed(func(serial, _ string) bool { return !before[serial] }, "the renewed certificate")
		// After a change of the bundle the API server connects again, and uses the current certificate.
		s.setBundle(append(fmt.Appendf(nil, "# %d\n", i), s.bundle()...))
		s.untilBinds(40)
	}
	s.end()
}

// Somebody replaces the files, one after the other, by those of another CA, as
// docs/certificates.md says: the new CA is added before.
func testFilesByHand(t *testing.T, w *world) {
	s := beginLoad(t, w)
	before := s.bundle()
	ca := gencert.NewCA(t, "by hand")
	leaf := ca.Sign(t, "by hand", gencert.DNS(serverName))
	s.setBundle(append(bytes.Clone(before), ca.CertPEM...))
	s.untilBinds(40)

	s.writeFiles(leaf.CertPEM, leaf.KeyPEM)
	s.untilServed(func(_, issuer string) bool { return issuer == "by hand" }, "the new CA's certificate")
	s.setBundle(ca.CertPEM)
	s.untilBinds(40)

	// Prebind rejects certificates that it cannot serve.
	expired := ca.Sign(t, "by hand", gencert.DNS(serverName), gencert.Valid(-time.Hour, -time.Minute))
	for i, bad := range [][2][]byte{{leaf.CertPEM, expired.KeyPEM}, {expired.CertPEM, expired.KeyPEM}} {
		s.writeFiles(bad[0], bad[1])
		s.untilMetric(fmt.Sprintf(`prebind_certificate_reloads_total{certificate="serving",result="failed"} %d`, i+1))
		s.writeFiles(leaf.CertPEM, leaf.KeyPEM)
		s.untilBinds(60) // Three seconds, in which the good files are seen again.
	}
	assert.Equal(t, map[string]bool{leaf.Cert.SerialNumber.String(): true}, s.served())
	s.untilMetric(fmt.Sprintf(`prebind_certificate_expiration_timestamp_seconds{certificate="serving"} %s`, number(leaf.Cert.NotAfter)))
	s.end()
}

// Prebind makes the certificates itself, renews them, and changes its CA.
func testSelfManaged(t *testing.T, w *world) {
	s := beginLoad(t, w)
	ca := func() string {
		secret, err := w.client.CoreV1().Secrets(install.Namespace).Get(t.Context(), selfmanaged.SecretName, metav1.GetOptions{})
		if err != nil {
			return ""
		}
		return string(secret.Data[corev1.TLSCertKey])
	}
	first := ca()
	require.NotEmpty(t, first)
	assert.Equal(t, first, string(s.bundle()))

	before := s.served()
	s.untilServed(func(serial, _ string) bool { return !before[serial] }, "renewed certificates")

	// The Secret is lost, and with it nothing.
	require.NoError(t, w.client.CoreV1().Secrets(install.Namespace).Delete(t.Context(), selfmanaged.SecretName, metav1.DeleteOptions{}))
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Equal(c, first, ca())
	}, patience, 50*time.Millisecond, "the CA should be restored")

	_, err := w.client.CoreV1().Secrets(install.Namespace).Patch(t.Context(), selfmanaged.SecretName, types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"`+selfmanaged.RotateAnnotation+`":"now"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Len(c, certificatesOf(s.bundle()), 2)
	}, patience, 50*time.Millisecond, "the next CA should be made known")
	assert.Equal(t, first, ca(), "and not be used yet")
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.NotEqual(c, first, ca())
	}, patience, 50*time.Millisecond, "the next CA should be promoted")
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Equal(c, ca(), string(s.bundle()))
	}, patience, 100*time.Millisecond, "the earlier CA should be dropped")
	s.untilMetric(fmt.Sprintf(`prebind_certificate_expiration_timestamp_seconds{certificate="ca"} %s`, number(certificatesOf([]byte(ca()))[0].NotAfter)))
	s.end()

	// kubectl apply of the manifests, as of an upgrade, leaves the bundle alone.
	generation := s.configuration().Generation
	require.NoError(t, w.prebind.Register(t.Context()))
	assert.Equal(t, generation, s.configuration().Generation, "the webhook configuration should not have been changed")
	// What somebody takes away is put back at once; in between binds may fail.
	good := s.bundle()
	s.setBundle(nil)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Equal(c, string(good), string(s.bundle()))
	}, patience, 20*time.Millisecond, "the bundle should be written again")
}

// load is a stream of binds, beside which each replica's certificate is looked at
// all the time, as an API server would on a new connection.
type load struct {
	*stream
	looking sync.WaitGroup

	looks    int
	mistrust []string
	// seen are serial and issuer of what each replica serves now.
	seen map[string][2]string
}

func beginLoad(t *testing.T, w *world) *load {
	t.Helper()
	s := &load{stream: newStream(t, w, "1s"), seen: map[string][2]string{}}
	s.begin()
	s.looking.Go(s.look)
	s.untilBinds(10)
	return s
}

// end stops the stream, and judges.
func (s *load) end() {
	s.t.Helper()
	s.stream.end()
	s.looking.Wait()
	assert.Empty(s.t, s.mistrust)
	assert.Greater(s.t, s.looks, 50)
	for _, e := range s.allEvents() {
		assert.NotContains(s.t, e, "webhook", "no kube-scheduler's bind failed either")
	}
	s.t.Logf("%d handshakes, %d not trusted", s.looks, len(s.mistrust))
}

// look makes a connection to each replica, again and again, that trusts what the
// webhook configuration says just before.
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
				leaf := conn.ConnectionState().PeerCertificates[0]
				s.seen[r.Name()] = [2]string{leaf.SerialNumber.String(), leaf.Issuer.CommonName}
				_ = conn.Close()
			} else {
				s.mistrust = append(s.mistrust, fmt.Sprintf("%s: %v", r.Name(), err))
			}
			s.mu.Unlock()
		}
	}
}

// served are the serial numbers of what is served now.
func (s *load) served() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	serials := map[string]bool{}
	for _, x := range s.seen {
		serials[x[0]] = true
	}
	return serials
}

func (s *load) untilServed(want func(serial, issuer string) bool, what string) {
	s.t.Helper()
	require.EventuallyWithT(s.t, func(c *assert.CollectT) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for name, x := range s.seen {
			assert.True(c, want(x[0], x[1]), "%s serves %s of %s", name, x[0], x[1])
		}
	}, patience, 50*time.Millisecond, "every replica should serve %s", what)
}

// untilBinds waits until there have been so many more binds.
func (s *load) untilBinds(n int) {
	s.t.Helper()
	before := s.answered()
	require.Eventually(s.t, func() bool { return s.answered() >= before+n }, patience, 50*time.Millisecond)
}

// untilMetric waits until the metrics of every replica have the line.
func (s *load) untilMetric(line string) {
	s.t.Helper()
	require.EventuallyWithT(s.t, func(c *assert.CollectT) {
		for _, r := range s.prebind.Replicas() {
			text, err := r.Metrics(s.t.Context())
			require.NoError(c, err)
			assert.Contains(c, text, line+"\n", r.Name())
		}
	}, patience, 200*time.Millisecond)
}

// bundle is what the API server trusts; nil if it cannot be read.
func (s *load) bundle() []byte {
	if config := s.configuration(); len(config.Webhooks) > 0 {
		return config.Webhooks[0].ClientConfig.CABundle
	}
	return nil
}

// configuration is the webhook configuration, empty if it cannot be read. It may be
// called from any goroutine.
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

// writeFiles writes over the files that the replicas read, as somebody's script may.
func (s *load) writeFiles(cert, key []byte) {
	s.t.Helper()
	for name, content := range map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key} {
		require.NoError(s.t, os.WriteFile(filepath.Join(s.prebind.CertDir(), name), content, 0o600))
	}
}

// certificatesOf are those in a bundle; none if it cannot be read.
func certificatesOf(bundle []byte) []*x509.Certificate {
	list, _ := cert.ParseCertsPEM(bundle)
	return list
}

// number is a time as a metric shows it.
func number(at time.Time) string { return strconv.FormatFloat(float64(at.Unix()), 'g', -1, 64) }
