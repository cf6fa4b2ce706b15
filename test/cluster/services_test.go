// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/prebind/prebind/test/cluster"
)

// hook is a webhook server that marks what it is asked about with its name.
type hook struct {
	backend cluster.Backend
	ready   atomic.Bool
}

func newHook(t *testing.T, name string, cert tls.Certificate) *hook {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		// A connection for each call, so that calls are balanced.
		w.Header().Set("Connection", "close")
		review.Response = &admissionv1.AdmissionResponse{
			UID: review.Request.UID, Allowed: true,
			PatchType: ptr.To(admissionv1.PatchTypeJSONPatch),
			Patch:     []byte(`[{"op":"add","path":"/data","value":{"by":"` + name + `"}}]`),
		}
		assert.NoError(t, json.NewEncoder(w).Encode(review))
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	h := &hook{}
	h.ready.Store(true)
	h.backend = cluster.Backend{Address: server.Listener.Addr().String(), Ready: func(context.Context) bool { return h.ready.Load() }}
	return h
}

// hookTimeout is the timeout of the API server's calls of the webhook. On a busy machine, a call that works can take seconds.
const hookTimeout = 10 * time.Second

// TestServices is about the API server calling a webhook by a Service, as the
// configurations that are shipped have it, with no kube-proxy anywhere.
func TestServices(t *testing.T) {
	client := clientFor(t, shared.Config())
	namespace := newNamespace(t, client)
	cert, ca := newCertificate(t, "hook."+namespace+".svc")
	newWebhook(t, client, namespace, ca)
	routes := shared.Services()
	const port = 443

	_, err := createConfigMap(t, client, namespace)
	require.ErrorContains(t, err, "Service Unavailable", "a service that is not routed refuses connections")

	first, second := newHook(t, "first", cert), newHook(t, "second", cert)
	routes.Route(namespace, "hook", port, first.backend, second.backend)
	t.Cleanup(func() { routes.Route(namespace, "hook", port) })
	seen, before := map[string]int{}, routes.Opened()
	for range 4 {
		by, err := createConfigMap(t, client, namespace)
		require.NoError(t, err)
		seen[by]++
	}
	assert.Equal(t, map[string]int{"first": 2, "second": 2}, seen, "the backends take turns")
	assert.Equal(t, 4, routes.Opened()-before, "a connection for each call")

	first.ready.Store(false)
	for range 2 {
		by, err := createConfigMap(t, client, namespace)
		require.NoError(t, err)
		assert.Equal(t, "second", by, "one that is not ready gets no new connections")
	}
	second.ready.Store(false)
	_, err = createConfigMap(t, client, namespace)
	require.ErrorContains(t, err, "Service Unavailable", "no backend is ready")

	second.ready.Store(true)
	routes.Cut(second.backend.Address)
	began := time.Now()
	_, err = createConfigMap(t, client, namespace)
	require.ErrorContains(t, err, "failed calling webhook")
	assert.GreaterOrEqual(t, time.Since(began), hookTimeout-time.Second, "a cut backend is silent until the call times out")

	routes.Heal(second.backend.Address)
	by, err := createConfigMap(t, client, namespace)
	require.NoError(t, err)
	assert.Equal(t, "second", by)
}

func createConfigMap(t *testing.T, client kubernetes.Interface, namespace string) (by string, err error) {
	t.Helper()
	created, err := client.CoreV1().ConfigMaps(namespace).Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-", Labels: map[string]string{"hook": namespace}}}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return created.Data["by"], nil
}

// newWebhook makes a Service and a webhook configuration that refers to it, and
// returns when the API server knows both.
func newWebhook(t *testing.T, client kubernetes.Interface, namespace string, ca []byte) {
	t.Helper()
	_, err := client.CoreV1().Services(namespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "hook"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	name := "hook." + namespace + ".example.com"
	_, err = client.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: name,
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				Service:  &admissionregistrationv1.ServiceReference{Namespace: namespace, Name: "hook"},
				CABundle: ca,
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
			ObjectSelector:          &metav1.LabelSelector{MatchLabels: map[string]string{"hook": namespace}},
			FailurePolicy:           ptr.To(admissionregistrationv1.Fail),
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			TimeoutSeconds:          new(int32(hookTimeout.Seconds())),
			AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = client.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{})
	})
	until(t, "the API server to call the webhook", func(context.Context) (string, error) {
		_, err := createConfigMap(t, client, namespace)
		if err == nil {
			return "not called", nil
		}
		return err.Error(), nil
	}, func(message string) bool { return strings.Contains(message, "Service Unavailable") })
}

// newCertificate makes a self-signed serving certificate, and its PEM to trust.
func newCertificate(t *testing.T, dnsName string) (tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    time.Now().Add(-time.Minute),
		NotAfter:     time.Now().Add(time.Hour),
		DNSNames:     []string{dnsName},
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
