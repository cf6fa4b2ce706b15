// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// What the metrics call the certificates.
const (
	// Serving is what the webhook shows to its callers.
	Serving = "serving"
	// ClientCA signs the certificates of those who may call.
	ClientCA = "client-ca"
	// CA signs the serving certificates that Prebind makes itself.
	CA = "ca"
)

// Metrics show when certificates expire, and count how often they were replaced.
// It is a prometheus.Collector, and safe for concurrent use.
type Metrics struct {
	expiration *prometheus.GaugeVec
	reloads    *prometheus.CounterVec
}

// NewMetrics returns metrics that are not registered yet.
func NewMetrics() *Metrics {
	return &Metrics{
		expiration: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "prebind_certificate_expiration_timestamp_seconds",
			Help: "When the certificate in use expires, in seconds since 1970: the serving one, the CA of clients (--client-ca-file, the first to expire), or the CA of self-managed certificates.",
		}, []string{"certificate"}),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prebind_certificate_reloads_total",
			Help: "Changes of certificates while Prebind runs, by result: done, or failed while the one before stays in use.",
		}, []string{"certificate", "result"}),
	}
}

// Collectors are the metrics, to be registered; the caller owns the slice.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.expiration, m.reloads}
}

// Expires says when the certificate in use ends.
func (m *Metrics) Expires(certificate string, at time.Time) {
	m.expiration.WithLabelValues(certificate).Set(float64(at.Unix()))
}

// Changed counts a change; an error says that it failed.
func (m *Metrics) Changed(certificate string, err error) {
	result := "done"
	if err != nil {
		result = "failed"
	}
	m.reloads.WithLabelValues(certificate, result).Inc()
}
