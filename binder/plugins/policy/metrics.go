// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/internal/tasks"
)

// resultWaived is the result of a wait that ended with its timeout and onTimeout Allow. It is counted in addition to
// the verdict of the policy.
const resultWaived = "waived"

// The states of policies in the metrics.
const (
	// stateInForce: the policy can be evaluated.
	stateInForce = "in_force"
	// stateNotReady: the policy cannot be evaluated, and follows its failure policy.
	stateNotReady = "not_ready"
)

// metrics are safe for concurrent use.
type metrics struct {
	results  *prometheus.CounterVec
	policies *prometheus.GaugeVec
	tasks    *tasks.Metrics
}

func newMetrics() *metrics {
	return &metrics{
		tasks: tasks.NewMetrics(),
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prebind_policy_results_total",
			Help: "Results of BindPolicies by policy, mode and result. Each policy that applies to the bind is counted when the bind is decided, and those that wait also when a call is held. Dry runs, and binds in mode Audit of Prebind, are not counted. The result waived counts waits and tasks that timed out with onTimeout Allow, in addition to the result of the policy.",
		}, []string{"policy", "mode", "result"}),
		policies: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "prebind_policies",
			Help: "BindPolicies in this replica by state: in_force, or not_ready if the policy cannot be evaluated and follows its failurePolicy.",
		}, []string{"state"}),
	}
}

// forget removes the series of a deleted policy.
func (m *metrics) forget(policy string) {
	m.results.DeletePartialMatch(prometheus.Labels{"policy": policy})
}

// show sets the gauge.
func (m *metrics) show(inForce, notReady int) {
	m.policies.WithLabelValues(stateInForce).Set(float64(inForce))
	m.policies.WithLabelValues(stateNotReady).Set(float64(notReady))
}

// begin creates the series of a policy, so that the first result is an increase.
func (m *metrics) begin(policyName string, audit bool) {
	for _, v := range policy.Verdicts[1:] { // All but NotMatched.
		m.results.WithLabelValues(policyName, mode(audit), string(v))
	}
	m.results.WithLabelValues(policyName, mode(audit), resultWaived)
}

// count counts the result of a policy that applies.
func (m *metrics) count(r policy.Result) {
	m.results.WithLabelValues(r.Policy, mode(r.Audit), string(r.Verdict)).Inc()
	m.results.WithLabelValues(r.Policy, mode(r.Audit), resultWaived).Add(float64(len(r.Waived)))
}

func mode(audit bool) string {
	if audit {
		return "audit"
	}
	return "enforce"
}
