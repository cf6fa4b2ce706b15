// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	admissionclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
)

const (
	fieldManager = "prebind"
	// oneCall is the timeout for the API calls of one round.
	oneCall = 10 * time.Second
	// defaultPeriod is the maximum time between two rounds. A removed CA bundle fails binds until the next round of one of the replicas.
	defaultPeriod = 2 * time.Second
)

var errNoConfiguration = errors.New("missing MutatingWebhookConfiguration")

// manager keeps the CA, the CA bundle of the webhook configuration, and this replica's certificate up to date while start runs.
// Its other methods are safe for concurrent use.
type manager struct {
	Shared
	client kubernetes.Interface
	// namespace of the Secret and the Service.
	namespace string
	// configuration is the name of the MutatingWebhookConfiguration.
	configuration string
	lives         lives
	// period is the time between two rounds.
	period time.Duration
	// names are the DNS names of the certificate.
	names []string

	served atomic.Pointer[leaf]
	// waits is the reason why there is no certificate yet, and the last problem in the log.
	waits atomic.Pointer[string]

	// The following fields belong to start.
	// known is the CA of the last valid Secret, or nil.
	known   *x509.Certificate
	trusted trust
}

// newManager starts nothing. The options must be valid.
func newManager(o Options, shared Shared, client kubernetes.Interface, namespace string) *manager {
	// The API server uses the first name.
	name := o.Service + "." + namespace + ".svc"
	m := &manager{
		Shared: shared, client: client, namespace: namespace, configuration: o.WebhookConfiguration,
		lives: o.lives(), period: min(defaultPeriod, o.Overlap/4), names: []string{name, name + ".cluster.local"},
	}
	m.waits.Store(new(fmt.Sprintf("not read yet: Secret %s and MutatingWebhookConfiguration %s", SecretName, m.configuration)))
	return m
}

// getCertificate implements GetCertificate of tls.Config. It returns an error while there is no certificate
// that the API server trusts.
func (m *manager) getCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if served := m.served.Load(); served != nil {
		return served.tls, nil
	}
	return nil, m.ready()
}

// ready returns an error while there is no certificate that the API server trusts.
func (m *manager) ready() error {
	if m.served.Load() != nil {
		return nil
	}
	return fmt.Errorf("no certificate that the API server trusts: %s", *m.waits.Load())
}

// start keeps everything up to date until the context ends. The exact time of a step does not matter.
func (m *manager) start(ctx context.Context) { wait.UntilWithContext(ctx, m.work, m.period) }

// work makes one round: it applies at most one step to the certificate, the Secret and the configuration, and reports errors.
func (m *manager) work(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, oneCall)
	defer cancel()
	secret, config, err := m.read(ctx)
	if err != nil {
		// This replica's own certificate needs only what was read before.
		m.report(errors.Join(err, m.certify(view{now: m.Clock.Now(), trusted: m.trusted})))
		return
	}
	v, invalid := m.look(secret, config)
	m.report(errors.Join(invalid, m.certify(v), m.step(ctx, v, secret), m.trust(ctx, v, config)))
}

// read returns the Secret and the configuration, or nil for those that do not exist. It reads the Secret last, so that its bundle is
// not older than that of the configuration.
func (m *manager) read(ctx context.Context) (*corev1.Secret, *admissionregistrationv1.MutatingWebhookConfiguration, error) {
	config, err := m.configs().Get(ctx, m.configuration, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		config, err = nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading MutatingWebhookConfiguration %s: %w", m.configuration, err)
	}
	secret, err := m.secrets().Get(ctx, SecretName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		secret, err = nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading Secret %s/%s: %w", m.namespace, SecretName, err)
	}
	return secret, config, nil
}

// look returns the current view, and an error for an invalid Secret. It stores the parts that later views need.
func (m *manager) look(secret *corev1.Secret, config *admissionregistrationv1.MutatingWebhookConfiguration) (view, error) {
	now := m.Clock.Now()
	m.trusted = m.trusted.seen(now, injected(config))
	v := view{now: now, trusted: m.trusted}
	if secret == nil {
		return v, nil
	}
	held, err := parseRecord(secret)
	if err != nil {
		return v, fmt.Errorf("the Secret %s is not valid: %w", SecretName, err)
	}
	m.Metrics.Expires(CA, held.current.cert.NotAfter)
	if m.known != nil && !m.known.Equal(held.current.cert) {
		m.Metrics.Changed(CA, nil)
	}
	m.known, v.held = held.current.cert, held
	return v, nil
}

// certify renews this replica's own certificate.
func (m *manager) certify(v view) error {
	served := m.served.Load()
	ca := m.lives.renews(v, served)
	if ca == nil {
		return nil
	}
	made, err := ca.issue(v.now, m.lives.cert, m.names)
	if err != nil {
		m.Metrics.Changed(Serving, err)
		return err
	}
	m.served.Store(made)
	m.Log.Info("Serving a new certificate", "names", m.names, "expires", made.tls.Leaf.NotAfter)
	m.Metrics.Expires(Serving, made.tls.Leaf.NotAfter)
	if served != nil {
		m.Metrics.Changed(Serving, nil)
	}
	return nil
}

// step applies one step to the Secret.
func (m *manager) step(ctx context.Context, v view, secret *corev1.Secret) error {
	r, err := m.lives.next(v)
	if err != nil || r == nil {
		return err
	}
	next := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: m.namespace, Name: SecretName}, Type: corev1.SecretTypeOpaque}
	if secret != nil {
		next = secret.DeepCopy()
	}
	if err := r.write(next); err != nil {
		return err
	}
	if secret == nil {
		_, err = m.secrets().Create(ctx, next, metav1.CreateOptions{FieldManager: fieldManager})
	} else {
		_, err = m.secrets().Update(ctx, next, metav1.UpdateOptions{FieldManager: fieldManager})
	}
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err) && next.UID != "":
		m.Log.V(2).Info("Another replica changed the Secret with the CA first", "secret", SecretName)
		return nil // The next round reads it.
	case err != nil:
		return fmt.Errorf("writing Secret %s/%s: %w", m.namespace, SecretName, err)
	}
	m.Log.Info("Changed the Secret with the CA", "secret", SecretName, "expires", r.current.cert.NotAfter, "trusted", len(r.bundle))
	return nil
}

// trust writes the CAs of the Secret to every webhook of the configuration. The bundle is never older than the one that it replaces:
// the Secret was read after the configuration, and the patch fails if the configuration has changed since.
func (m *manager) trust(ctx context.Context, v view, config *admissionregistrationv1.MutatingWebhookConfiguration) error {
	switch {
	case config == nil:
		return fmt.Errorf("%w %s: apply it; Prebind then writes the CA bundle to it", errNoConfiguration, m.configuration)
	case v.held == nil:
		return nil // The Secret needs another step first.
	}
	if err := contested(config); err != nil {
		return err
	}
	patch, err := bundlePatch(config, v.held.bundle)
	if err != nil || patch == nil {
		return err
	}
	_, err = m.configs().Patch(ctx, m.configuration, types.StrategicMergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		m.Log.V(2).Info("Another client changed the webhook configuration first", "webhookConfiguration", m.configuration, "reason", err.Error())
		return nil // The next round reads it.
	case err != nil:
		return fmt.Errorf("writing the CA bundle to MutatingWebhookConfiguration %s: %w", m.configuration, err)
	}
	m.Log.Info("Wrote the CA bundle", "webhookConfiguration", m.configuration, "cas", len(v.held.bundle))
	return nil
}

// report logs an error once. The causes of failed requests contain changing ports, and do not count.
func (m *manager) report(err error) {
	text := "waiting for the CA bundle in the webhook configuration"
	if err != nil {
		text = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	about := func(text string) string {
		request, _, _ := strings.Cut(text, `": `)
		return request
	}
	before := *m.waits.Swap(&text)
	switch {
	case err == nil, about(text) == about(before):
	case errors.Is(err, errNoConfiguration):
		m.Log.Info("Waiting for the webhook configuration", "reason", text)
	default:
		m.Log.Error(err, "Could not update certificates: the current ones stay in use")
		m.Metrics.Changed(CA, err)
	}
}

func (m *manager) secrets() coreclient.SecretInterface {
	return m.client.CoreV1().Secrets(m.namespace)
}

func (m *manager) configs() admissionclient.MutatingWebhookConfigurationInterface {
	return m.client.AdmissionregistrationV1().MutatingWebhookConfigurations()
}
