// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/seeds"
)

// model runs replicas and injects faults. Every API server must trust the certificate of every replica, although
// an API server may use a bundle that is older by most of the overlap.
type model struct {
	*world
	random   *rand.Rand
	options  Options
	replicas []*replica
	// stalled contains the certificates of replicas that still serve without a connection.
	stalled []*leaf
	// locked and released are the last times at which the configuration became read-only and writable.
	locked, released time.Time
	// bundles contains the bundles of the last overlap, the oldest first.
	bundles []bundleAt
	cas     map[string]bool
	// verified caches the results for a leaf and a bundle, because verification is slow.
	verified map[string]bool
}

type bundleAt struct {
	when   time.Time
	bundle []byte
}

func TestModel_ServesOnlyTrustedCertificates(t *testing.T) {
	for _, seed := range seeds.Of(t, 1) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &model{
					world: newWorld(t, webhooks(nil, nil)), random: rand.New(rand.NewPCG(seed, 1)),
					options: Options{CAValidity: 2 * time.Hour, CertValidity: 30 * time.Minute, Overlap: time.Minute}, cas: map[string]bool{}, verified: map[string]bool{},
				}
				m.period = 10 * time.Second
				for range 3 {
					m.replicas = append(m.replicas, m.start(m.options))
				}
				pass(time.Second)
				for range 500 {
					m.disturb()
					pass(time.Duration(1+m.random.IntN(20)) * time.Second)
					m.check()
				}
				for _, r := range m.replicas {
					r.stop()
				}
				assert.Greater(t, len(m.cas), 4, "the CA changes several times")
			})
		})
	}
}

// disturb injects a random fault into the replicas or the Secret.
func (m *model) disturb() {
	i, fault := m.random.IntN(len(m.replicas)), m.random.IntN(200)
	// A replica that starts while API servers differ does not know it, and removes CAs early that replicas without a connection need.
	differ := time.Since(m.released) < m.options.Overlap
	locked := m.config().Annotations != nil
	if locked && time.Since(m.locked) > m.options.CAValidity/8 { // Otherwise the CA expires.
		m.release()
		locked = false
	}
	switch {
	case fault == 0 && differ, fault == 1 && (differ || locked), fault == 5 && (differ || locked):
		fault = -1
	}
	switch fault {
	case 0: // Replace a replica like a rollout.
		m.replicas[i].stop()
		m.replicas[i] = m.start(m.options)
	case 1: // Disconnect a replica, which still serves.
		m.replicas[i].stop()
		m.stall(m.replicas[i])
		m.replicas[i] = m.start(m.options)
	case 2:
		m.server.Remove(ofPrebind)
	case 3:
		m.setSecret(func(s *corev1.Secret) { s.Data["tls.key"] = []byte("x") })
	case 4:
		m.setSecret(func(s *corev1.Secret) { metav1.SetMetaDataAnnotation(&s.ObjectMeta, RotateAnnotation, "now") })
	case 5: // Stop all replicas and lose the key of the CA.
		for _, r := range m.replicas {
			r.stop()
			m.stall(r)
		}
		m.server.Remove(ofPrebind)
		for i := range m.replicas {
			m.replicas[i] = m.start(m.options)
		}
	case 6: // Prevent Prebind from writing the configuration, or allow it again.
		if locked {
			m.release()
			break
		}
		m.locked = time.Now()
		m.setConfig(func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			c.Annotations = map[string]string{injectedByOthers + "ca-from": ""}
		})
	}
	pass(m.period)
}

// release lets Prebind write the configuration again.
func (m *model) release() {
	m.released = time.Now()
	m.setConfig(func(c *admissionregistrationv1.MutatingWebhookConfiguration) { c.Annotations = nil })
}

// stall keeps the certificate of a stopped replica in use.
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
	// An API server may use a bundle that is older by most of the overlap.
	for now.Sub(m.bundles[0].when) > m.options.Overlap*3/4 {
		m.bundles = m.bundles[1:]
	}
	all := slices.Clone(m.stalled)
	for _, r := range m.replicas {
		if l := r.served.Load(); l != nil {
			all = append(all, l)
			m.cas[string(l.by.Leaf.Raw)] = true
		} else {
			// A replica that has no certificate waits until every API server has a new CA.
			since := min(now.Sub(r.began), now.Sub(m.record().current.Leaf.NotBefore.Add(early)), now.Sub(m.released))
			require.True(m.t, c.Annotations != nil || since < 2*m.options.Overlap, "a replica should be ready: %v", r.ready())
		}
	}
	var left []*leaf
	for i, l := range all {
		if i < len(m.stalled) && !now.Before(l.tls.Leaf.NotAfter) {
			continue
		}
		for _, b := range m.bundles {
			pair := string(l.tls.Leaf.Raw) + string(b.bundle)
			require.True(m.t, now.Before(l.tls.Leaf.NotAfter), "at %s, a replica serves a certificate that expired at %s", now, l.tls.Leaf.NotAfter)
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
	require.LessOrEqual(m.t, len(m.record().bundle), 30, "CAs that are not needed are removed")
}
