// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/test/fakeapi"
)

const (
	namespace = "prebind-system"
	service   = "prebind-webhook"
	config    = "prebind"
)

// world is a fake API server.
type world struct {
	t      *testing.T
	client client.Client
	// period replaces that of the replicas, if it is set.
	period time.Duration
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	return &world{t: t, client: connected{Connection: fakeapi.New(objects...).Connect()}}
}

// connected is a client of the fake API server. Its interface is nil, because the manager does not call the methods that the Connection lacks.
type connected struct {
	*fakeapi.Connection
	others
}

type others struct{ nothing }

type nothing struct{ client.Client }

func (w *world) secret() *corev1.Secret {
	s := &corev1.Secret{}
	require.NoError(w.t, w.client.Get(w.t.Context(), client.ObjectKey{Namespace: namespace, Name: SecretName}, s))
	return s
}

func (w *world) record() *record {
	w.t.Helper()
	r, err := parseRecord(w.secret())
	require.NoError(w.t, err)
	return r
}

func (w *world) setSecret(change func(s *corev1.Secret)) {
	w.t.Helper()
	s := w.secret()
	change(s)
	require.NoError(w.t, w.client.Update(w.t.Context(), s))
}

func (w *world) config() *admissionregistrationv1.MutatingWebhookConfiguration {
	w.t.Helper()
	c := &admissionregistrationv1.MutatingWebhookConfiguration{}
	require.NoError(w.t, w.client.Get(w.t.Context(), client.ObjectKey{Name: config}, c))
	return c
}

func (w *world) setConfig(change func(c *admissionregistrationv1.MutatingWebhookConfiguration)) {
	w.t.Helper()
	c := w.config()
	change(c)
	require.NoError(w.t, w.client.Update(w.t.Context(), c))
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
	m := newManager(o, shared(log), w.client, namespace)
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
