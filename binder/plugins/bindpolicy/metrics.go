// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bindpolicy

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/prebind/prebind/policy"
)

const (
	// maxNames is the number of policies that have their own series. Others share otherName.
	maxNames  = 500
	otherName = "other"
	// resultWaived is the result of a wait that ended with its timeout and onTimeout Allow. It is counted in addition to
	// the verdict of the policy.
	resultWaived = "waived"
)

// metrics are safe for concurrent use.
type metrics struct {
	results  *prometheus.CounterVec
	policies *prometheus.GaugeVec

	mu sync.Mutex
	// names are the policies with their own series.
	names map[string]bool
}

func newMetrics() *metrics {
	return &metrics{
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prebind_policy_results_total",
			Help: "Results of BindPolicies by policy, mode and result. Each policy that applies to the bind is counted when a call begins to wait, and when it is decided. Dry runs are not counted. The result waived counts waits that timed out with onTimeout Allow, in addition to the result of the policy. Policies after the first 500 are counted as other.",
		}, []string{"policy", "mode", "result"}),
		policies: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "prebind_policies",
			Help: "BindPolicies in this replica by state: in_force, or not_ready if the policy cannot be evaluated and follows its failurePolicy.",
		}, []string{"state"}),
		names: map[string]bool{},
	}
}

// name returns the value of the label for the policy.
func (m *metrics) name(policy string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.names[policy]:
		return policy
	case len(m.names) >= maxNames:
		return otherName
	default:
		m.names[policy] = true
		return policy
	}
}

// forget removes the series of a deleted policy.
func (m *metrics) forget(policy string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names[policy] {
		delete(m.names, policy)
		m.results.DeletePartialMatch(prometheus.Labels{"policy": policy})
	}
}

// show sets the gauge.
func (m *metrics) show(counts map[state]int) {
	for _, s := range []state{stateInForce, stateNotReady} {
		m.policies.WithLabelValues(string(s)).Set(float64(counts[s]))
	}
}

// counters are the counters of one policy in force.
type counters struct {
	waived    prometheus.Counter
	byVerdict map[policy.Verdict]prometheus.Counter
}

// countersOf returns the counters of a policy.
func (m *metrics) countersOf(policyName string, audit bool) *counters {
	name, mode := m.name(policyName), "enforce"
	if audit {
		mode = "audit"
	}
	all := &counters{
		waived:    m.results.WithLabelValues(name, mode, resultWaived),
		byVerdict: map[policy.Verdict]prometheus.Counter{},
	}
	for _, v := range []policy.Verdict{policy.Allowed, policy.Rejected, policy.Waiting, policy.TimedOut, policy.Failed, policy.Ignored} {
		all.byVerdict[v] = m.results.WithLabelValues(name, mode, string(v))
	}
	return all
}

// count counts the result of a policy that applies.
func (c *counters) count(r policy.Result) {
	if counter := c.byVerdict[r.Verdict]; counter != nil {
		counter.Inc()
	}
	c.waived.Add(float64(len(r.Waived)))
}
