// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

const (
	// oneCall is the timeout for the API calls of one round.
	oneCall = 10 * time.Second
	// defaultPeriod is the maximum time between two rounds. A removed CA bundle fails binds until the next round of one of the replicas.
	defaultPeriod = 2 * time.Second
	// injectedByOthers is the prefix of the annotations that make cert-manager write the CA bundle.
	injectedByOthers = "cert-manager.io/inject-"
)

var errNoConfiguration = errors.New("missing MutatingWebhookConfiguration")

// manager keeps the CA, the CA bundle of the webhook configuration, and this replica's certificate up to date while start runs.
// Its other methods are safe for concurrent use.
type manager struct {
	Shared
	o Options
	// period is the time between two rounds.
	period time.Duration
	// names are the DNS names of the certificate.
	names []string

	served atomic.Pointer[leaf]
	// waits is the reason why there is no certificate yet, and the last problem in the log.
	waits atomic.Pointer[string]

	// trusted belongs to start.
	trusted trust
}

// newManager starts nothing. The options must be valid.
func newManager(o Options, shared Shared) *manager {
	// The API server uses the first name.
	name := o.Service + "." + shared.Namespace + ".svc"
	m := &manager{Shared: shared, o: o, period: min(defaultPeriod, o.Overlap/4), names: []string{name, name + ".cluster.local"}}
	m.waits.Store(new(fmt.Sprintf("not read yet: Secret %s and MutatingWebhookConfiguration %s", SecretName, m.o.WebhookConfiguration)))
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

// work makes one round: it applies at most one step to the Secret, the configuration and the certificate, and reports errors.
func (m *manager) work(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, oneCall)
	defer cancel()
	v := view{now: m.Clock.Now(), trusted: m.trusted}
	err := m.update(ctx, &v)
	m.report(v, errors.Join(err, m.certify(v)))
}

// update sets the rest of the view, and writes the Secret and the configuration if they have to change. It reads the Secret last, so that its
// bundle is not older than that of the configuration.
func (m *manager) update(ctx context.Context, v *view) error {
	config := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := m.Client().Get(ctx, client.ObjectKey{Name: m.o.WebhookConfiguration}, config); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading MutatingWebhookConfiguration %s: %w", m.o.WebhookConfiguration, err)
	}
	v.now = m.Clock.Now() // The configuration is not newer.
	// After its deletion, the API server still calls Prebind for BindPolicies, and trusts the same CAs.
	if config.ResourceVersion != "" || m.trusted == nil {
		m.trusted = m.trusted.seen(v.now, injected(config))
	}
	v.trusted = m.trusted
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, Name: SecretName}}
	var next *record
	var invalid error
	result, err := controllerutil.CreateOrUpdate(ctx, m.Client(), secret, func() (err error) {
		v.held, invalid = m.parse(secret)
		if next, err = m.o.next(*v); err != nil || next == nil {
			return err
		}
		return next.write(secret)
	})
	switch {
	case err != nil:
		next, err = nil, unlessLate(fmt.Errorf("updating Secret %s/%s: %w", m.Namespace, SecretName, err))
	case result != controllerutil.OperationResultNone:
		m.Metrics.Changed(CA, nil)
		m.Log.Info("Changed the Secret with the CA", "secret", SecretName, "expires", next.current.Leaf.NotAfter, "trusted", len(next.bundle))
	}
	return errors.Join(invalid, err, m.trust(ctx, config, cmp.Or(next, v.held)))
}

// unlessLate returns nil for the error of a write if another client was first. The next round reads its object.
func unlessLate(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// parse returns the content of the Secret. It returns an error for a Secret that exists and is not valid.
func (m *manager) parse(secret *corev1.Secret) (*record, error) {
	if secret.ResourceVersion == "" {
		return nil, nil
	}
	held, err := parseRecord(secret)
	if err != nil {
		return nil, fmt.Errorf("the Secret %s is not valid: %w", SecretName, err)
	}
	m.Metrics.Expires(CA, held.current.Leaf.NotAfter)
	return held, nil
}

// certify renews this replica's own certificate.
func (m *manager) certify(v view) error {
	served := m.served.Load()
	ca := m.o.renews(v, served)
	if ca == nil {
		return nil
	}
	made, err := ca.issue(v.now, m.o.CertValidity, m.names)
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

// trust writes the CAs of the Secret to every webhook of the configuration. The bundle is never older than the one that it replaces:
// the Secret was read after the configuration, and the patch fails if the configuration has changed since. CAs of other issuers stay:
// while the source of certificates changes, some replicas serve certificates of the other source.
func (m *manager) trust(ctx context.Context, config *admissionregistrationv1.MutatingWebhookConfiguration, r *record) error {
	switch {
	case config.ResourceVersion == "":
		return fmt.Errorf("%w %s: apply it; Prebind then writes the CA bundle to it", errNoConfiguration, m.o.WebhookConfiguration)
	case r == nil:
		return nil // The Secret could not be read or written.
	}
	if err := contested(config); err != nil {
		return err
	}
	cas := slices.Clone(r.bundle)
	for _, c := range injected(config) {
		if c.Subject.CommonName != caName && !holds(cas, c) {
			cas = append(cas, c)
		}
	}
	bundle := encode(cas...)
	differs := func(w admissionregistrationv1.MutatingWebhook) bool {
		return !bytes.Equal(w.ClientConfig.CABundle, bundle)
	}
	if !slices.ContainsFunc(config.Webhooks, differs) {
		return nil
	}
	before := config.DeepCopy()
	for i := range config.Webhooks {
		config.Webhooks[i].ClientConfig.CABundle = bundle
	}
	if err := m.Client().Patch(ctx, config, client.StrategicMergeFrom(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return unlessLate(fmt.Errorf("writing the CA bundle to MutatingWebhookConfiguration %s: %w", m.o.WebhookConfiguration, err))
	}
	m.Log.Info("Wrote the CA bundle", "webhookConfiguration", m.o.WebhookConfiguration, "cas", len(cas))
	return nil
}

// injected returns the CAs in the bundle of the configuration. Each write sets the same bundle in all of its webhooks.
func injected(config *admissionregistrationv1.MutatingWebhookConfiguration) []*x509.Certificate {
	if len(config.Webhooks) == 0 {
		return nil
	}
	// The API server trusts no CA of an invalid bundle.
	all, _ := cert.ParseCertsPEM(config.Webhooks[0].ClientConfig.CABundle)
	return all
}

// contested returns an error if cert-manager also writes the bundle.
func contested(config *admissionregistrationv1.MutatingWebhookConfiguration) error {
	for name := range config.Annotations {
		if strings.HasPrefix(name, injectedByOthers) {
			return fmt.Errorf("MutatingWebhookConfiguration %s: cert-manager writes the CA bundle because of the annotation %s: remove the annotation or --self-managed-certs", config.Name, name)
		}
	}
	return nil
}

// report logs an error once. The causes of failed requests contain changing ports, and do not count.
func (m *manager) report(v view, err error) {
	if err == nil && v.held != nil && v.now.Before(v.held.current.Leaf.NotBefore) {
		err = fmt.Errorf("the CA in the Secret %s is not valid before %s: correct the clock of this replica, or delete the Secret if the clock of its creator was ahead",
			SecretName, v.held.current.Leaf.NotBefore.Format(time.RFC3339))
	}
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
