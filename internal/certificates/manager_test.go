// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"bytes"
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/test/fakeapi"
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
		a.stop()
		b.stop()
	})
}

// While the source of certificates changes, the API server trusts replicas of both.
func TestManager_OtherSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other, err := sign(&x509.Certificate{
			Subject: pkix.Name{CommonName: "another CA"}, NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		}, nil)
		require.NoError(t, err)
		w := newWorld(t, webhooks(encode(other.Leaf)))
		first := w.start(times)
		pass(2 * defaultPeriod)
		assert.Equal(t, encode(w.record().current.Leaf, other.Leaf), w.config().Webhooks[0].ClientConfig.CABundle, "to self-managed certificates")
		own := encode(w.record().current.Leaf)
		w.setConfig(func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			c.Webhooks[0].ClientConfig.CABundle = own
		})
		pass(2 * defaultPeriod)
		assert.Equal(t, own, w.config().Webhooks[0].ClientConfig.CABundle, "a CA that a person removes is gone")
		first.stop()

		// The Secret remains while files are the source.
		w.setConfig(func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			c.Webhooks[0].ClientConfig.CABundle = encode(other.Leaf)
		})
		second := w.start(times)
		pass(2 * defaultPeriod)
		assert.Equal(t, encode(w.record().current.Leaf, other.Leaf), w.config().Webhooks[0].ClientConfig.CABundle, "back to self-managed certificates")
		second.stop()
	})
}

// TestManager_MissingConfiguration checks that replicas wait for a webhook configuration and log once.
func TestManager_MissingConfiguration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, o := newWorld(t), Options{CAValidity: 2 * time.Hour, CertValidity: 5 * time.Minute, Overlap: time.Minute}
		r := w.start(o)
		pass(o.CertValidity)
		require.ErrorContains(t, r.ready(), "missing MutatingWebhookConfiguration prebind")
		_, err := r.getCertificate(nil)
		require.ErrorContains(t, err, "no certificate that the API server trusts")
		w.server.Put(webhooks(nil))
		pass(2 * defaultPeriod)
		require.NoError(t, r.ready())
		served, err := r.getCertificate(nil)
		require.NoError(t, err)
		assert.Equal(t, []string{"prebind-webhook.prebind-system.svc", "prebind-webhook.prebind-system.svc.cluster.local"}, served.Leaf.DNSNames)
		assert.Equal(t, served.Leaf.NotAfter.Unix(), expires(r, Serving))
		assert.Equal(t, w.record().current.Leaf.NotAfter.Unix(), expires(r, CA))

		bundle := w.config().Webhooks[0].ClientConfig.CABundle
		w.server.Remove(webhooks())
		pass(2 * o.CertValidity)
		require.NoError(t, r.ready(), "a replica with a certificate stays ready")
		require.NoError(t, verify(r.served.Load(), bundle, time.Now()), "the API server still calls for BindPolicies")
		pass(o.CAValidity * 5 / 6)
		assert.NotEqual(t, w.record().current.Leaf, r.served.Load().by.Leaf)
		require.NoError(t, verify(r.served.Load(), bundle, time.Now()), "the API server does not trust a CA that is created in the meantime")
		w.server.Put(webhooks(nil))
		pass(2 * defaultPeriod)
		require.NoError(t, verify(r.served.Load(), w.config().Webhooks[0].ClientConfig.CABundle, time.Now()))
		r.stop()
		assert.Equal(t, 2, strings.Count(r.log.String(), "Waiting for the webhook configuration"), "the replica logs one line each time it waits:\n%s", r.log)
	})
}

// TestManager_FutureCA checks a replica that starts after the clock of another one was ahead.
func TestManager_FutureCA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		future, err := newAuthority(time.Now().Add(3*day), times.CAValidity)
		require.NoError(t, err)
		secret := ofPrebind.DeepCopy()
		secret.Data = written(t, future)
		w := newWorld(t, webhooks(encode(future.Leaf)), secret)
		r := w.start(times)
		pass(2 * defaultPeriod)
		require.ErrorContains(t, r.ready(), "is not valid before "+future.Leaf.NotBefore.Format(time.RFC3339))
		assert.Contains(t, r.log.String(), "is not valid before", "a replica with an earlier certificate is ready")
		w.server.Remove(ofPrebind)
		pass(2 * times.Overlap)
		require.NoError(t, r.ready())
		r.stop()
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

const (
	namespace = "prebind-system"
	service   = "prebind-webhook"
	config    = "prebind"
)

// world is a fake API server.
type world struct {
	t      *testing.T
	server *fakeapi.Server
	// period replaces that of the replicas, if it is set.
	period time.Duration
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	return &world{t: t, server: fakeapi.New(objects...)}
}

// connected is a client of the fake API server. Its interface is nil, because the manager does not call the methods that the Connection lacks.
type connected struct {
	*fakeapi.Connection
	others
}

type others struct{ nothing }

type nothing struct{ client.Client }

// ofPrebind is the Secret with the CA.
var ofPrebind = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: SecretName}}

func (w *world) record() *record {
	w.t.Helper()
	secret, ok := fakeapi.Get(w.server, ofPrebind)
	require.True(w.t, ok)
	r, err := parseRecord(secret)
	require.NoError(w.t, err)
	return r
}

func (w *world) setSecret(change func(s *corev1.Secret)) {
	fakeapi.Change(w.server, ofPrebind, "someone", change)
}

func (w *world) config() *admissionregistrationv1.MutatingWebhookConfiguration {
	w.t.Helper()
	c, ok := fakeapi.Get(w.server, webhooks())
	require.True(w.t, ok)
	return c
}

func (w *world) setConfig(change func(c *admissionregistrationv1.MutatingWebhookConfiguration)) {
	fakeapi.Change(w.server, webhooks(), "someone", change)
}

// replica is a running manager.
type replica struct {
	*manager
	began time.Time
	log   *bytes.Buffer
	stop  func()
}

func (w *world) start(o Options) *replica {
	w.t.Helper()
	log := &bytes.Buffer{}
	o.Service, o.WebhookConfiguration = service, config
	depends, api := shared(log), connected{Connection: w.server.Connect()}
	depends.Client, depends.Namespace = func() client.Client { return api }, namespace
	m := newManager(o, depends)
	if w.period > 0 {
		m.period = w.period
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.start(ctx)
	}()
	return &replica{manager: m, began: time.Now(), log: log, stop: func() {
		cancel()
		<-done
	}}
}

// pass advances the time of the synctest bubble.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // In a synctest bubble.
	synctest.Wait()
}

// webhooks returns a configuration with one webhook per bundle.
func webhooks(bundles ...[]byte) *admissionregistrationv1.MutatingWebhookConfiguration {
	c := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: config}}
	for i, b := range bundles {
		path := "/mutate-pods-binding"
		c.Webhooks = append(c.Webhooks, admissionregistrationv1.MutatingWebhook{
			Name: fmt.Sprintf("w%d.prebind.dev", i),
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				Service:  &admissionregistrationv1.ServiceReference{Namespace: namespace, Name: service, Path: &path},
				CABundle: b,
			},
		})
	}
	return c
}

// verify returns an error unless an API server with this bundle trusts the leaf.
func verify(l *leaf, bundle []byte, now time.Time) error {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(bundle)
	_, err := l.tls.Leaf.Verify(x509.VerifyOptions{
		Roots: pool, DNSName: service + "." + namespace + ".svc", CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return err
}
