// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Values of the metrics' label "certificate".
const (
	// Serving is the certificate that the webhook presents to its callers.
	Serving = "serving"
	// ClientCA signs the certificates of callers.
	ClientCA = "client-ca"
	// CA signs self-managed serving certificates.
	CA = "ca"
)

// Metrics record the expiration times and the changes of certificates. They are safe for concurrent use.
type Metrics struct {
	expiration *prometheus.GaugeVec
	reloads    *prometheus.CounterVec
}

// NewMetrics returns metrics that are not registered.
func NewMetrics() *Metrics {
	return &Metrics{
		expiration: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "prebind_certificate_expiration_timestamp_seconds",
			Help: "Expiration time of the certificate in use, in seconds since 1970: the serving certificate, the CA of clients (--client-ca-file, the last to expire), or the CA of self-managed certificates.",
		}, []string{"certificate"}),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prebind_certificate_reloads_total",
			Help: "Changes of certificates while Prebind runs, by result: done, or failed if the previous certificate stays in use.",
		}, []string{"certificate", "result"}),
	}
}

// Collectors returns the metrics for registration. The caller owns the slice.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.expiration, m.reloads}
}

// Expires records when the certificate in use expires.
func (m *Metrics) Expires(certificate string, at time.Time) {
	m.expiration.WithLabelValues(certificate).Set(float64(at.Unix()))
}

// Changed counts a change of the certificate, or a failed one if err is not nil.
func (m *Metrics) Changed(certificate string, err error) {
	result := "done"
	if err != nil {
		result = "failed"
	}
	m.reloads.WithLabelValues(certificate, result).Inc()
}
