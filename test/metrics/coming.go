// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import dto "github.com/prometheus/client_model/go"

// Coming are metrics that alerts and the dashboard know already and that no code
// registers yet. One that is registered must leave this list.
func Coming() []Metric {
	return []Metric{
		{Name: "prebind_certificate_expiration_timestamp_seconds", Type: dto.MetricType_GAUGE, Labels: []string{"certificate"}},
		{Name: "prebind_certificate_reloads_total", Type: dto.MetricType_COUNTER, Labels: []string{"certificate", "result"}},
	}
}
