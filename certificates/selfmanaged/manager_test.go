// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package selfmanaged

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/certificates"
)

const (
	namespace = "prebind-system"
	service   = "prebind-webhook"
	config    = "prebind"
)

// world is an API server with versions of objects, as far as these tests need it.
type world struct {
	t      *testing.T
	client *fake.Clientset

	mu      sync.Mutex
	version int
	// before is called ahead of a write, if it is set.
	before func(action clienttesting.Action) error
}

func newWorld(t *testing.T, objects ...runtime.Object) *world {
	t.Helper()
	w := &world{t: t, client: fake.NewClientset()}
	w.client.PrependReactor("create", "*", w.write)
	w.client.PrependReactor("update", "*", w.write)
	w.client.PrependReactor("patch", "*", w.patch)
	for _, o := range objects {
		w.add(o)
	}
	return w
}

func (w *world) add(o runtime.Object) {
	w.t.Helper()
	require.NoError(w.t, w.client.Tracker().Add(w.stamp(o)))
}

// stamp gives the object the next version.
func (w *world) stamp(o runtime.Object) runtime.Object {
	w.version++
	object, err := meta.Accessor(o)
	require.NoError(w.t, err)
	object.SetResourceVersion(strconv.Itoa(w.version))
	object.SetUID("uid")
	return o
}

func (w *world) write(action clienttesting.Action) (bool, runtime.Object, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.before != nil {
		if err := w.before(action); err != nil {
			return true, nil, err
		}
	}
	tracker, gvr := w.client.Tracker(), action.GetResource()
	if create, ok := action.(clienttesting.CreateAction); ok && action.GetVerb() == "create" {
		o := w.stamp(create.GetObject().DeepCopyObject())
		return true, o, tracker.Create(gvr, o, action.GetNamespace())
	}
	update, ok := action.(clienttesting.UpdateAction)
	require.True(w.t, ok)
	o := update.GetObject().DeepCopyObject()
	sent, err := meta.Accessor(o)
	require.NoError(w.t, err)
	stored, err := tracker.Get(gvr, action.GetNamespace(), sent.GetName())
	if err != nil {
		return true, nil, err
	}
	if have, _ := meta.Accessor(stored); have.GetResourceVersion() != sent.GetResourceVersion() {
		return true, nil, apierrors.NewConflict(gvr.GroupResource(), sent.GetName(), fmt.Errorf("it has changed"))
	}
	return true, o, tracker.Update(gvr, w.stamp(o), action.GetNamespace())
}

func (w *world) patch(action clienttesting.Action) (bool, runtime.Object, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.before != nil {
		if err := w.before(action); err != nil {
			return true, nil, err
		}
	}
	p, ok := action.(clienttesting.PatchAction)
	require.True(w.t, ok)
	stored, err := w.client.Tracker().Get(action.GetResource(), "", p.GetName())
	if err != nil {
		return true, nil, err
	}
	was, err := json.Marshal(stored)
	require.NoError(w.t, err)
	patch, err := jsonpatch.DecodePatch(p.GetPatch())
	require.NoError(w.t, err)
	is, err := patch.Apply(was)
	require.NoError(w.t, err)
	var o admissionregistrationv1.MutatingWebhookConfiguration
	require.NoError(w.t, json.Unmarshal(is, &o))
	if have, _ := meta.Accessor(stored); have.GetResourceVersion() != o.ResourceVersion {
		return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), o.Name, fmt.Errorf("it has changed"))
	}
	return true, &o, w.client.Tracker().Update(action.GetResource(), w.stamp(&o), "")
}

func (w *world) secret() *corev1.Secret {
	s, err := w.client.CoreV1().Secrets(namespace).Get(w.t.Context(), SecretName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(w.t, err)
	return s.DeepCopy()
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
	_, err := w.client.CoreV1().Secrets(namespace).Update(w.t.Context(), s, metav1.UpdateOptions{})
	require.NoError(w.t, err)
}

func (w *world) config() *admissionregistrationv1.MutatingWebhookConfiguration {
	w.t.Helper()
	c, err := w.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(w.t.Context(), config, metav1.GetOptions{})
	require.NoError(w.t, err)
	return c.DeepCopy()
}

func (w *world) setConfig(change func(c *admissionregistrationv1.MutatingWebhookConfiguration)) {
	w.t.Helper()
	c := w.config()
	change(c)
	_, err := w.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Update(w.t.Context(), c, metav1.UpdateOptions{})
	require.NoError(w.t, err)
}

// replica is a Manager that runs.
type replica struct {
	*Manager
	began time.Time
	log   *bytes.Buffer
	stop  func()
}

func (w *world) start(l lives) *replica {
	w.t.Helper()
	log := &bytes.Buffer{}
	m, err := New(Options{
		Client: w.client, Namespace: namespace, Service: service, Configuration: config,
		CAValidity: l.ca, CertValidity: l.cert, Overlap: l.overlap,
		Clock: clock.RealClock{}, Metrics: certificates.NewMetrics(),
		Log: textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(log))),
	})
	require.NoError(w.t, err)
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		assert.NoError(w.t, m.Start(ctx))
	}()
	return &replica{Manager: m, began: time.Now(), log: log, stop: func() {
		cancel()
		<-done
	}}
}

// pass lets the time of the bubble pass.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // The time of the bubble.
	synctest.Wait()
}

// webhooks is a configuration with a webhook for each bundle.
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

// model runs replicas while anything happens to them and to the Secret. What any
// replica serves must be trusted by every API server, though these may be behind by
// most of the overlap.
type model struct {
	*world
	random   *rand.Rand
	lives    lives
	replicas []*replica
	// stalled are certificates of replicas that hear of nothing, and serve on.
	stalled []*leaf
	// bundles are those of the last overlap, the oldest first.
	bundles []bundleAt
	cas     map[string]bool
	// verified are leaf and bundle, for it takes long to find out.
	verified map[string]bool
}

type bundleAt struct {
	when   time.Time
	bundle []byte
}

func TestNeverServesWhatIsNotTrusted(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &model{
					world: newWorld(t, webhooks(nil, nil)), random: rand.New(rand.NewPCG(seed, 1)),
					lives: lives{ca: 4 * time.Hour, cert: time.Hour, overlap: time.Minute}, cas: map[string]bool{}, verified: map[string]bool{},
				}
				for range 3 {
					m.replicas = append(m.replicas, m.start(m.lives))
				}
				pass(time.Second)
				for range 1200 {
					m.disturb()
					pass(time.Duration(1+m.random.IntN(20)) * time.Second)
					m.check()
				}
				for _, r := range m.replicas {
					r.stop()
				}
				assert.Greater(t, len(m.cas), 4, "the CA should have been changed several times")
			})
		})
	}
}

// disturb does something to the replicas or the Secret, now and then.
func (m *model) disturb() {
	i := m.random.IntN(len(m.replicas))
	switch m.random.IntN(200) {
	case 0: // Replaced, as a rollout does.
		m.replicas[i].stop()
		m.replicas[i] = m.start(m.lives)
	case 1: // It hears of nothing any more, and goes on serving.
		m.replicas[i].stop()
		m.stall(m.replicas[i])
		m.replicas[i] = m.start(m.lives)
	case 2:
		require.NoError(m.t, m.client.CoreV1().Secrets(namespace).Delete(m.t.Context(), SecretName, metav1.DeleteOptions{}))
	case 3:
		m.setSecret(func(s *corev1.Secret) { s.Data["tls.key"] = []byte("x") })
	case 4:
		m.setSecret(func(s *corev1.Secret) { metav1.SetMetaDataAnnotation(&s.ObjectMeta, RotateAnnotation, "now") })
	case 5: // All at once, and the CA's key is lost.
		for _, r := range m.replicas {
			r.stop()
			m.stall(r)
		}
		require.NoError(m.t, m.client.CoreV1().Secrets(namespace).Delete(m.t.Context(), SecretName, metav1.DeleteOptions{}))
		for i := range m.replicas {
			m.replicas[i] = m.start(m.lives)
		}
	case 6:
		m.setSecret(func(s *corev1.Secret) { delete(s.Annotations, promotedAnnotation) })
	}
	synctest.Wait()
}

// stall has a replica that was stopped serve on what it had.
func (m *model) stall(r *replica) {
	if l := r.served.Load(); l != nil {
		m.stalled = append(m.stalled, l)
	}
}

func (m *model) check() {
	now := time.Now()
	c := m.config()
	bundle := c.Webhooks[0].ClientConfig.CABundle
	require.Equal(m.t, bundle, c.Webhooks[1].ClientConfig.CABundle)
	m.bundles = append(m.bundles, bundleAt{now, bundle})
	// An API server may be behind by most of the overlap.
	for now.Sub(m.bundles[0].when) > m.lives.overlap*3/4 {
		m.bundles = m.bundles[1:]
	}
	all := slices.Clone(m.stalled)
	for _, r := range m.replicas {
		if l := r.served.Load(); l != nil {
			all = append(all, l)
			m.cas[string(l.ca.Raw)] = true
		} else {
			require.Less(m.t, now.Sub(r.began), 2*m.lives.overlap, "a replica should be ready: %v", r.Ready())
		}
	}
	var left []*leaf
	for i, l := range all {
		if i < len(m.stalled) && !now.Before(l.tls.Leaf.NotAfter) {
			continue
		}
		for _, b := range m.bundles {
			pair := string(l.tls.Leaf.Raw) + string(b.bundle)
			require.True(m.t, now.Before(l.tls.Leaf.NotAfter), "at %s, it serves what ended at %s", now, l.tls.Leaf.NotAfter)
			if !m.verified[pair] {
				require.NoError(m.t, verify(l, b.bundle, now), "at %s, with the bundle of %s", now, b.when)
				m.verified[pair] = true
			}
		}
		if i < len(m.stalled) {
			left = append(left, l)
		}
	}
	m.stalled = left
	require.LessOrEqual(m.t, len(m.record().bundle), 30, "what is not needed any more goes")
}

func TestMends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, webhooks(nil))
		a, b := w.start(times), w.start(times)
		pass(time.Second)
		first := w.record()
		bundle, err := cert.EncodeCertificates(first.bundle...)
		require.NoError(t, err)

		// kubectl apply of the shipped manifests takes the bundle away.
		w.setConfig(func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			c.Webhooks[0].ClientConfig.CABundle = nil
		})
		synctest.Wait()
		assert.Equal(t, bundle, w.config().Webhooks[0].ClientConfig.CABundle, "at once")

		w.setConfig(func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			c.Webhooks = append(c.Webhooks, webhooks(nil).Webhooks...)
			c.Webhooks[1].Name = "another.prebind.dev"
		})
		synctest.Wait()
		assert.Equal(t, bundle, w.config().Webhooks[1].ClientConfig.CABundle, "every webhook of the configuration")
		want := webhooks(bundle, bundle)
		want.Webhooks[1].Name = "another.prebind.dev"
		assert.Equal(t, want.Webhooks, w.config().Webhooks, "and nothing else")

		require.NoError(t, w.client.CoreV1().Secrets(namespace).Delete(t.Context(), SecretName, metav1.DeleteOptions{}))
		synctest.Wait()
		assert.Equal(t, first.current.certPEM, w.record().current.certPEM, "the CA is not lost with its Secret")

		w.setSecret(func(s *corev1.Secret) { s.Data = map[string][]byte{"tls.crt": []byte("x")} })
		synctest.Wait()
		assert.Equal(t, first.current.certPEM, w.record().current.certPEM, "the CA is not lost with its Secret")
		a.stop()
		b.stop()
		assert.Equal(t, 1, strings.Count(a.log.String(), "makes no sense"))
	})
}

// While nobody is there to be called, replicas wait for that, and say so once.
func TestWithoutConfiguration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.start(times)
		pass(time.Hour)
		require.ErrorContains(t, r.Ready(), "no MutatingWebhookConfiguration prebind")
		_, err := r.GetCertificate(nil)
		require.ErrorContains(t, err, "no certificate yet")
		w.add(webhooks(nil))
		synctest.Wait()
		require.NoError(t, r.Ready(), "at once")
		served, err := r.GetCertificate(nil)
		require.NoError(t, err)
		assert.Equal(t, []string{"prebind-webhook.prebind-system.svc", "prebind-webhook.prebind-system.svc.cluster.local"}, served.Leaf.DNSNames)
		assert.InDelta(t, served.Leaf.NotAfter.Unix(), gauge(t, r, certificates.Serving), 0)
		assert.InDelta(t, w.record().current.cert.NotAfter.Unix(), gauge(t, r, certificates.CA), 0)

		require.NoError(t, w.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(t.Context(), config, metav1.DeleteOptions{}))
		pass(time.Minute)
		require.NoError(t, r.Ready(), "a replica that serves goes on")
		r.stop()
		assert.Equal(t, 2, strings.Count(r.log.String(), "nowhere to go"), "once for each time:\n%s", r.log)
	})
}

// Nothing is served before the API server trusts it, and a problem is told once.
func TestWithoutPermission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, webhooks(nil))
		w.before = func(action clienttesting.Action) error {
			if action.GetVerb() == "patch" {
				return apierrors.NewForbidden(action.GetResource().GroupResource(), config, fmt.Errorf("no"))
			}
			return nil
		}
		r := w.start(times)
		pass(time.Minute)
		require.ErrorContains(t, r.Ready(), "forbidden")
		assert.NotContains(t, r.Ready().Error(), "\n")
		w.mu.Lock()
		w.before = nil
		w.mu.Unlock()
		pass(2 * time.Second)
		require.NoError(t, r.Ready(), "it is tried again")
		r.stop()
		assert.Equal(t, 1, strings.Count(r.log.String(), "cannot be kept up to date"), "%s", r.log)
	})
}

// Where cert-manager is asked to write the bundle, nobody fights with it.
func TestContested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := webhooks([]byte("its own"))
		c.Annotations = map[string]string{"cert-manager.io/inject-ca-from": "prebind-system/prebind-webhook"}
		w := newWorld(t, c)
		r := w.start(times)
		pass(time.Minute)
		require.ErrorContains(t, r.Ready(), "cert-manager.io/inject-ca-from")
		assert.Equal(t, "its own", string(w.config().Webhooks[0].ClientConfig.CABundle))
		w.setConfig(func(c *admissionregistrationv1.MutatingWebhookConfiguration) { c.Annotations = nil })
		synctest.Wait()
		require.NoError(t, r.Ready())
		r.stop()
	})
}

// A replica whose caches are behind does not undo what another one has written.
func TestBehindAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, webhooks(nil))
		r := w.start(times)
		pass(time.Second)
		behind := w.record()
		w.setSecret(func(s *corev1.Secret) { metav1.SetMetaDataAnnotation(&s.ObjectMeta, RotateAnnotation, "now") })
		synctest.Wait()
		ahead := w.config()
		require.Len(t, injected(ahead), 2)

		v := view{now: time.Now(), held: behind}
		require.NoError(t, r.trust(t.Context(), v, ahead))
		assert.Equal(t, ahead.Webhooks, w.config().Webhooks)
		r.stop()
	})
}

func TestInjected(t *testing.T) {
	a, b := ca(t, 0), ca(t, 1)
	both := append(bytes.Clone(a.certPEM), b.certPEM...)
	assert.Empty(t, injected(nil))
	assert.Empty(t, injected(webhooks()))
	assert.Empty(t, injected(webhooks(nil)))
	assert.Empty(t, injected(webhooks([]byte("x"), both)))
	assert.Equal(t, []*x509.Certificate{a.cert, b.cert}, injected(webhooks(both)))
	assert.Equal(t, []*x509.Certificate{b.cert}, injected(webhooks(both, b.certPEM)), "what every webhook trusts")
}

func TestNew(t *testing.T) {
	good := Options{
		Client: fake.NewClientset(), Namespace: namespace, Service: service, Configuration: config,
		CAValidity: DefaultCAValidity, CertValidity: DefaultCertValidity, Overlap: DefaultOverlap,
		Clock: clock.RealClock{}, Log: klog.Background(), Metrics: certificates.NewMetrics(),
	}
	_, err := New(good)
	require.NoError(t, err)
	for name, spoil := range map[string]func(o *Options){
		"Client":        func(o *Options) { o.Client = nil },
		"Namespace":     func(o *Options) { o.Namespace = "" },
		"Service":       func(o *Options) { o.Service = "" },
		"Configuration": func(o *Options) { o.Configuration = "" },
		"Clock":         func(o *Options) { o.Clock = nil },
		"Metrics":       func(o *Options) { o.Metrics = nil },
		"overlap":       func(o *Options) { o.Overlap = 0 },
	} {
		o := good
		spoil(&o)
		_, err := New(o)
		assert.ErrorContains(t, err, name)
	}
}

// gauge is when the metrics say that the certificate expires.
func gauge(t *testing.T, r *replica, certificate string) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	for _, c := range r.o.Metrics.Collectors() {
		require.NoError(t, registry.Register(c))
	}
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, m := range families[0].GetMetric() {
		if m.GetLabel()[0].GetValue() == certificate {
			return m.GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no metric of %s", certificate)
	return 0
}
