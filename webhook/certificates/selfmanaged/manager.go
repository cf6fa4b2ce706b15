// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package selfmanaged

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	admissioninformers "k8s.io/client-go/informers/admissionregistration/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	admissionclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Defaults of the flags.
const (
	DefaultCAValidity   = 365 * 24 * time.Hour
	DefaultCertValidity = 7 * 24 * time.Hour
	// DefaultOverlap is longer than a watch event needs to reach every API server.
	DefaultOverlap = time.Minute
)

const (
	fieldManager = "prebind"
	// oneCall is the timeout for the API calls of one step.
	oneCall = 10 * time.Second
	// retry is the pause after an error.
	retry = time.Second
)

// Names of certificates for a Recorder.
const (
	// Serving is the certificate that a replica presents to its callers.
	Serving = "serving"
	// CA signs serving certificates.
	CA = "ca"
)

// Recorder records the state of certificates. Implementations must be safe for concurrent use.
type Recorder interface {
	// Expires records when the certificate in use expires.
	Expires(certificate string, at time.Time)
	// Changed counts a change of the certificate, or a failed one if err is not nil.
	Changed(certificate string, err error)
}

var errNoConfiguration = errors.New("missing MutatingWebhookConfiguration")

// Options are the options of a Manager. All fields are required.
type Options struct {
	Client kubernetes.Interface
	// Namespace of the Secret and the Service.
	Namespace string
	// Service through which the API server calls the webhook.
	Service string
	// Configuration is the name of the MutatingWebhookConfiguration.
	Configuration string
	// CAValidity and CertValidity are the validity of a CA and of a serving certificate. Both are renewed after two thirds of
	// that time.
	CAValidity, CertValidity time.Duration
	// Overlap is the time for which a CA is trusted before it signs.
	Overlap time.Duration
	Clock   clock.WithTicker
	Log     klog.Logger
	Metrics Recorder
}

// Manager keeps the CA, the CA bundle of the webhook configuration, and this replica's certificate up to date while Start runs.
// Its other methods are safe for concurrent use.
type Manager struct {
	o     Options
	lives lives
	names []string

	served atomic.Pointer[leaf]
	// waits is the reason why there is no certificate yet.
	waits atomic.Pointer[string]

	// The following fields belong to Start.
	known   *record
	trusted trust
	// logged is the last problem in the log.
	logged string
	// garbled is the version of the last invalid Secret in the log.
	garbled string
}

// New returns an error if an option is missing or not valid. It starts nothing.
func New(o Options) (*Manager, error) {
	if o.Client == nil || o.Namespace == "" || o.Service == "" || o.Configuration == "" || o.Clock == nil || o.Metrics == nil {
		return nil, errors.New("self-managed certificates: Client, Namespace, Service, Configuration, Clock and Metrics are required")
	}
	m := &Manager{o: o, lives: lives{ca: o.CAValidity, cert: o.CertValidity, overlap: o.Overlap}}
	if err := m.lives.validate(); err != nil {
		return nil, err
	}
	// The API server uses the first name.
	name := o.Service + "." + o.Namespace + ".svc"
	m.names = []string{name, name + ".cluster.local"}
	m.wait(fmt.Errorf("not read yet: Secret %s and MutatingWebhookConfiguration %s", SecretName, o.Configuration))
	return m, nil
}

// GetCertificate implements the function of the same name in tls.Config. It returns an error while there is no certificate
// that the API server trusts.
func (m *Manager) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if served := m.served.Load(); served != nil {
		return served.tls, nil
	}
	return nil, m.Ready()
}

// Ready returns an error while there is no certificate that the API server trusts.
func (m *Manager) Ready() error {
	if m.served.Load() != nil {
		return nil
	}
	return fmt.Errorf("no certificate that the API server trusts: %s", *m.waits.Load())
}

// Start keeps everything up to date until the context ends.
func (m *Manager) Start(ctx context.Context) error {
	changed := make(chan struct{}, 1)
	secrets, err := watched(coreinformers.NewFilteredSecretInformer(m.o.Client, m.o.Namespace, 0, nil, only(SecretName)), changed)
	if err != nil {
		return err
	}
	configs, err := watched(admissioninformers.NewFilteredMutatingWebhookConfigurationInformer(m.o.Client, 0, nil, only(m.o.Configuration)), changed)
	if err != nil {
		return err
	}
	var informers sync.WaitGroup
	defer informers.Wait()
	informers.Go(func() { secrets.RunWithContext(ctx) })
	informers.Go(func() { configs.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), secrets.HasSynced, configs.HasSynced) {
		return nil // The context has ended.
	}
	for {
		// Some steps depend only on the time. Their exact time does not matter.
		pause := m.o.Overlap / 4
		if err := m.work(ctx, one[*corev1.Secret](secrets), one[*admissionregistrationv1.MutatingWebhookConfiguration](configs)); err != nil {
			pause = min(pause, retry)
		}
		timer := m.o.Clock.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-changed:
			timer.Stop()
		case <-timer.C():
		}
	}
}

// work applies all steps that are due and reports errors.
func (m *Manager) work(ctx context.Context, secret *corev1.Secret, config *admissionregistrationv1.MutatingWebhookConfiguration) error {
	ctx, cancel := context.WithTimeout(ctx, oneCall)
	defer cancel()
	v := m.look(secret, config)
	err := errors.Join(m.certify(v), m.step(ctx, v, secret), m.trust(ctx, v, config))
	m.report(err)
	return err
}

// look returns the current view and stores the parts that later views need.
func (m *Manager) look(secret *corev1.Secret, config *admissionregistrationv1.MutatingWebhookConfiguration) view {
	now := m.o.Clock.Now()
	m.trusted = m.trusted.seen(now, injected(config))
	held, err := parseRecord(secret)
	if err != nil && secret != nil && secret.ResourceVersion != m.garbled {
		m.garbled = secret.ResourceVersion
		m.o.Log.Error(err, "The Secret with the CA is not valid", "secret", SecretName)
	}
	v := view{now: now, held: held, known: m.known, trusted: m.trusted}
	if held != nil {
		m.o.Metrics.Expires(CA, held.current.cert.NotAfter)
		if m.known != nil && !m.known.current.cert.Equal(held.current.cert) {
			m.o.Metrics.Changed(CA, nil)
		}
		m.known = held
	}
	return v
}

// certify renews this replica's own certificate.
func (m *Manager) certify(v view) error {
	served := m.served.Load()
	if !m.lives.renews(v, served) {
		return nil
	}
	made, err := v.held.current.issue(v.now, m.lives.cert, m.names)
	if err != nil {
		m.o.Metrics.Changed(Serving, err)
		return err
	}
	m.served.Store(made)
	m.o.Log.Info("Serving a new certificate", "names", m.names, "expires", made.tls.Leaf.NotAfter)
	m.o.Metrics.Expires(Serving, made.tls.Leaf.NotAfter)
	if served != nil {
		m.o.Metrics.Changed(Serving, nil)
	}
	return nil
}

// step applies one step to the Secret. The resulting watch event starts the next one.
func (m *Manager) step(ctx context.Context, v view, secret *corev1.Secret) error {
	s := m.lives.next(v)
	if s == stepNone {
		return nil
	}
	r, err := m.lives.take(s, v)
	if err != nil {
		return err
	}
	next := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: m.o.Namespace, Name: SecretName}, Type: corev1.SecretTypeOpaque}
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
		m.o.Log.V(2).Info("Another replica changed the Secret with the CA first", "secret", SecretName)
		return nil // The watch reports it.
	case err != nil:
		return fmt.Errorf("writing Secret %s/%s: %w", m.o.Namespace, SecretName, err)
	}
	m.o.Log.Info("Changed the Secret with the CA", "secret", SecretName, "step", s, "expires", r.current.cert.NotAfter, "trusted", len(r.bundle))
	return nil
}

// trust ensures that the webhook configuration contains the CAs of the Secret.
func (m *Manager) trust(ctx context.Context, v view, config *admissionregistrationv1.MutatingWebhookConfiguration) error {
	switch {
	case config == nil:
		return fmt.Errorf("%w %s: apply it; Prebind then writes the CA bundle to it", errNoConfiguration, m.o.Configuration)
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
	err = m.inject(ctx)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		m.o.Log.V(2).Info("Another client changed the webhook configuration first", "webhookConfiguration", m.o.Configuration, "reason", err.Error())
		return nil // The watch reports it.
	}
	return err
}

// report logs an error once.
func (m *Manager) report(err error) {
	if err == nil {
		m.logged = ""
		m.wait(errors.New("waiting for the CA bundle in the webhook configuration"))
		return
	}
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	m.wait(errors.New(text))
	if text == m.logged {
		return
	}
	m.logged = text
	if errors.Is(err, errNoConfiguration) {
		m.o.Log.Info("Waiting for the webhook configuration", "reason", text)
		return
	}
	m.o.Log.Error(err, "Could not update certificates: the current ones stay in use")
	m.o.Metrics.Changed(CA, err)
}

func (m *Manager) wait(err error) {
	text := err.Error()
	m.waits.Store(&text)
}

func (m *Manager) secrets() coreclient.SecretInterface {
	return m.o.Client.CoreV1().Secrets(m.o.Namespace)
}

func (m *Manager) configs() admissionclient.MutatingWebhookConfigurationInterface {
	return m.o.Client.AdmissionregistrationV1().MutatingWebhookConfigurations()
}

// only selects the object with this name.
func only(name string) func(*metav1.ListOptions) {
	return func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	}
}

// watched sends to changed on every event of the informer.
func watched(informer cache.SharedIndexInformer, changed chan<- struct{}) (cache.SharedIndexInformer, error) {
	signal := func() {
		select {
		case changed <- struct{}{}:
		default: // A signal is already pending.
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { signal() },
		UpdateFunc: func(any, any) { signal() },
		DeleteFunc: func(any) { signal() },
	})
	if err != nil {
		return nil, fmt.Errorf("watching: %w", err)
	}
	return informer, nil
}

// one returns the object that the informer watches, or nil.
func one[T any](informer cache.SharedIndexInformer) T {
	var object T
	for _, x := range informer.GetStore().List() {
		object, _ = x.(T)
	}
	return object
}
