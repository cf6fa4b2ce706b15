// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The last of thirty minutes, to which the series below are loaded.
const minutes = 30

// TestAlerts lets each alert look at a Prometheus in trouble and at others that are
// well: an alert that fires without need is worse than none.
func TestAlerts(t *testing.T) {
	// A hundred binds a minute that are allowed, on two replicas that are well.
	well := `
		prebind_build_info{pod="a"} 1x30
		prebind_build_info{pod="b"} 1x30
		prebind_ready{pod="a"} 1x30
		prebind_ready{pod="b"} 1x30
		prebind_decisions_total{pod="a",decision="allowed",plugin=""} 0+100x30
		prebind_config_info{pod="a",hash="1"} 1x30
		prebind_config_info{pod="b",hash="1"} 1x30
		prebind_certificate_expiration_timestamp_seconds{certificate="serving"} 2592000x30
		prebind_swept_total{plugin="device",verdict="commit",result="failed"} 0x30
		prebind_decision_duration_seconds_sum{decision="allowed"} 0+50x30
		apiserver_admission_webhook_admission_duration_seconds_sum{name="pods-binding.prebind.dev"} 0+52x30
		apiserver_admission_webhook_admission_duration_seconds_count{name="pods-binding.prebind.dev"} 0+100x30
		apiserver_admission_webhook_rejection_count{name="pods-binding.prebind.dev",error_type="no_error"} 0+90x30
		prebind_decision_duration_seconds_bucket{le="0.0005"} 0+100x30
		prebind_decision_duration_seconds_bucket{le="8.192"} 0+100x30
		prebind_decision_duration_seconds_bucket{le="16.384"} 0+100x30
		prebind_decision_duration_seconds_bucket{le="+Inf"} 0+100x30
		prebind_plugin_duration_seconds_bucket{plugin="device",extension_point="PreFlight",le="0.0005"} 0+100x30
		prebind_plugin_duration_seconds_bucket{plugin="device",extension_point="PreFlight",le="+Inf"} 0+100x30
		prebind_bind_wait_seconds_bucket{le="0.01"} 0x30
		prebind_bind_wait_seconds_bucket{le="2.56"} 0+90x30
		prebind_bind_wait_seconds_bucket{le="163.84"} 0+100x30
		prebind_bind_wait_seconds_bucket{le="655.36"} 0+100x30
		prebind_bind_wait_seconds_bucket{le="+Inf"} 0+100x30
		prebind_bind_wait_seconds_count 0+100x30`
	cases := map[string]struct {
		// fires are series that replace those of the same name and labels in well.
		fires string
		// also is another trouble, if there are two.
		also string
		// not is what is near it and no reason to fire.
		not map[string]string
	}{
		"PrebindAbsent": {fires: "prebind_build_info{pod=\"a\"} _x30\nprebind_build_info{pod=\"b\"} _x30", not: map[string]string{
			"one is left": `prebind_build_info{pod="a"} _x30`,
		}},
		"PrebindNotReady": {fires: "prebind_ready{pod=\"a\"} 0x30\nprebind_ready{pod=\"b\"} 0x30", not: map[string]string{
			"one is ready": `prebind_ready{pod="a"} 0x30`,
		}},
		"PrebindReplicaNotReady": {
			fires: `prebind_ready{pod="a"} 0x30`,
			also:  "up{namespace=\"prebind-system\",container=\"prebind\",pod=\"a\"} 0x30\nprebind_ready{pod=\"a\"} _x30", // It does not answer.
			not:   map[string]string{"another container": `up{namespace="prebind-system",container="other",pod="a"} 0x30`},
		},
		"PrebindCallsFailing": {fires: `apiserver_admission_webhook_rejection_count{name="pods-binding.prebind.dev",error_type="calling_webhook_error"} 0+100x30`, not: map[string]string{
			"one call in a hundred":    `apiserver_admission_webhook_rejection_count{name="pods-binding.prebind.dev",error_type="calling_webhook_error"} 0+1x30`,
			"another webhook fails":    `apiserver_admission_webhook_rejection_count{name="other.example.com",error_type="calling_webhook_error"} 0+100x30`,
			"Prebind rejects Bindings": `apiserver_admission_webhook_rejection_count{name="pods-binding.prebind.dev",error_type="no_error"} 0+100x30`,
			"the failures are over":    `apiserver_admission_webhook_rejection_count{name="pods-binding.prebind.dev",error_type="calling_webhook_error"} 0+100x20 2000x10`,
		}},
		"PrebindCallsFailOpen": {fires: `apiserver_admission_webhook_fail_open_count{name="pods-binding.prebind.dev"} 0+1x30`, not: map[string]string{
			"another webhook fails": `apiserver_admission_webhook_fail_open_count{name="other.example.com"} 0+1x30`,
			"the failures are over": `apiserver_admission_webhook_fail_open_count{name="pods-binding.prebind.dev"} 7x30`,
		}},
		"PrebindNotCalled": {
			fires: `apiserver_request_total{resource="pods",subresource="binding",code="201",dry_run=""} 0+1x30
			apiserver_admission_webhook_admission_duration_seconds_count{name="pods-binding.prebind.dev"} _x30`,
			also: `apiserver_request_total{resource="pods",subresource="binding",code="201",dry_run=""} 0+1x30
			apiserver_admission_webhook_admission_duration_seconds_count{name="pods-binding.prebind.dev"} 70x30`,
			not: map[string]string{
				"its first call": `apiserver_request_total{resource="pods",subresource="binding",code="201",dry_run=""} 0+1x30
				apiserver_admission_webhook_admission_duration_seconds_count{name="pods-binding.prebind.dev"} _x25 1x5`,
				"it is called": `apiserver_request_total{resource="pods",subresource="binding",code="201",dry_run=""} 0+1x30`,
				"a few binds in exempt namespaces": `apiserver_request_total{resource="pods",subresource="binding",code="201",dry_run=""} 0x20 0+1x10
				apiserver_admission_webhook_admission_duration_seconds_count{name="pods-binding.prebind.dev"} 70x30`,
				"kubectl prebind explain": `apiserver_request_total{resource="pods",subresource="binding",code="201",dry_run="All"} 0+1x30
				apiserver_admission_webhook_admission_duration_seconds_count{name="pods-binding.prebind.dev"} 70x30`,
			},
		},
		"PrebindRejectionsHigh": {fires: `prebind_decisions_total{pod="a",decision="refused",plugin="volumebinding"} 0+200x30`, not: map[string]string{
			"one rejection in three": `prebind_decisions_total{pod="a",decision="refused",plugin="volumebinding"} 0+50x30`,
			"clients wait":           `prebind_decisions_total{pod="a",decision="waiting",plugin="volumebinding"} 0+900x30`,
			"schedulers were late":   `prebind_decisions_total{pod="a",decision="stale",plugin="binder"} 0+200x30`,
			"a few binds in all":     "prebind_decisions_total{pod=\"a\",decision=\"refused\",plugin=\"device\"} 0+2x30\nprebind_decisions_total{pod=\"a\",decision=\"allowed\",plugin=\"\"} 0+1x30",
		}},
		"PrebindCallsSlow": {fires: `apiserver_admission_webhook_admission_duration_seconds_sum{name="pods-binding.prebind.dev"} 0+120x30`, not: map[string]string{
			"Prebind holds calls": "apiserver_admission_webhook_admission_duration_seconds_sum{name=\"pods-binding.prebind.dev\"} 0+2502x30\nprebind_decision_duration_seconds_sum{decision=\"allowed\"} 0+2500x30",
			"no calls":            "apiserver_admission_webhook_admission_duration_seconds_sum{name=\"pods-binding.prebind.dev\"} 9x30\napiserver_admission_webhook_admission_duration_seconds_count{name=\"pods-binding.prebind.dev\"} 9x30\nprebind_decision_duration_seconds_sum{decision=\"allowed\"} 9x30",
		}},
		"PrebindWaitsLong": {fires: `prebind_bind_wait_seconds_bucket{le="2.56"} 0+50x30
			prebind_bind_wait_seconds_bucket{le="163.84"} 0+50x30`, also: `prebind_decisions_total{pod="a",decision="waiting",plugin="volumebinding"} 0+1200x30`, not: map[string]string{
			"a minute": `prebind_bind_wait_seconds_bucket{le="2.56"} 0x30`,
			"three minutes": `prebind_bind_wait_seconds_bucket{le="2.56"} 0x30
				prebind_bind_wait_seconds_bucket{le="163.84"} 0x30
				prebind_bind_wait_seconds_bucket{le="327.68"} 0+100x30`,
			"one bind in a hundred": `prebind_bind_wait_seconds_bucket{le="163.84"} 0+99x30`,
			"five calls for a bind": `prebind_decisions_total{pod="a",decision="waiting",plugin="volumebinding"} 0+500x30`,
			"one call": `prebind_decisions_total{pod="a",decision="waiting",plugin="volumebinding"} 0x20 1x10
				prebind_bind_wait_seconds_count 0x30`,
		}},
		"PrebindFailing": {fires: `prebind_decisions_total{pod="a",decision="internal",plugin="device"} 0+10x30`, not: map[string]string{
			"one in a hundred":       `prebind_decisions_total{pod="a",decision="internal",plugin="device"} 0+1x30`,
			"the schedulers' doing":  `prebind_decisions_total{pod="a",decision="refused",plugin="device"} 0+100x30`,
			"nothing is bound":       `prebind_decisions_total{pod="a",decision="allowed",plugin=""} 7x30`,
			"failures of yesterday":  `prebind_decisions_total{pod="a",decision="internal",plugin="device"} 1000x30`,
			"no bind was ever asked": `prebind_decisions_total{pod="a",decision="allowed",plugin=""} _x30`,
		}},
		"PrebindMutatorFailing": {fires: `prebind_mutator_failures_total{mutator="topology"} 0+1x30`, not: map[string]string{
			"once, long ago":            `prebind_mutator_failures_total{mutator="topology"} 1x30`,
			"it works since 11 minutes": `prebind_mutator_failures_total{mutator="topology"} 0x17 50x12`,
		}},
		"PrebindPreFlightSlow": {fires: `prebind_plugin_duration_seconds_bucket{plugin="device",extension_point="PreFlight",le="0.0005"} 0x30
			prebind_plugin_duration_seconds_bucket{plugin="device",extension_point="PreFlight",le="2.048"} 0+100x30`, not: map[string]string{
			"PreBind takes its time": `prebind_plugin_duration_seconds_bucket{plugin="device",extension_point="PreBind",le="2.048"} 0+1x30`,
		}},
		"PrebindHoldsAtLimit": {fires: `prebind_holds_refused_total{pod="a"} 0+50x30
			prebind_decisions_total{pod="a",decision="waiting",plugin="volumebinding"} 0+100x30`,
			also: `prebind_holds_refused_total{pod="a"} 0+50x30`, // A rule of namespaces with rejectAfter rejects all.
			not: map[string]string{
				"a burst now and then": "prebind_holds_refused_total{pod=\"a\"} 0+5x30\nprebind_decisions_total{pod=\"a\",decision=\"waiting\",plugin=\"volumebinding\"} 0+100x30",
				"no pod waits":         `prebind_holds_refused_total{pod="a"} 500x30`,
			}},
		"PrebindLiveReadsHigh": {fires: `prebind_live_reads_total{plugin="binder",kind="Pod",reason="missing"} 0+90x30`, not: map[string]string{
			"by design":             `prebind_live_reads_total{plugin="binder",kind="Pod",reason="outcome"} 0+200x30`,
			"less than one in four": `prebind_live_reads_total{plugin="binder",kind="Pod",reason="missing"} 0+10x30`,
			"a quiet cluster":       "prebind_live_reads_total{plugin=\"binder\",kind=\"Pod\",reason=\"missing\"} 0+2x30\nprebind_decisions_total{pod=\"a\",decision=\"allowed\",plugin=\"\"} 0+2x30",
		}},
		"PrebindSweepFailing": {fires: `prebind_swept_total{plugin="device",verdict="commit",result="failed"} 0+6x30`, not: map[string]string{
			"once":    `prebind_swept_total{plugin="device",verdict="commit",result="failed"} 0x28 1x2`,
			"over":    `prebind_swept_total{plugin="device",verdict="commit",result="failed"} 0x20 50x9`,
			"success": `prebind_swept_total{plugin="device",verdict="commit",result="done"} 0+6x30`,
		}},
		"PrebindPolicyRejectsAll": {fires: `prebind_policy_results_total{policy="a",mode="enforce",result="rejected"} 0+30x30
			prebind_policy_results_total{policy="a",mode="enforce",result="allowed"} 0+1x30`, not: map[string]string{
			"half":       "prebind_policy_results_total{policy=\"a\",mode=\"enforce\",result=\"rejected\"} 0+30x30\nprebind_policy_results_total{policy=\"a\",mode=\"enforce\",result=\"allowed\"} 0+30x30",
			"audit":      `prebind_policy_results_total{policy="a",mode="audit",result="rejected"} 0+30x30`,
			"one a hour": `prebind_policy_results_total{policy="a",mode="enforce",result="rejected"} 0x29 1`,
			"one pod":    `prebind_policy_results_total{policy="a",mode="enforce",result="rejected"} 0+6x30`, // With kube-scheduler's backoff.
		}},
		"PrebindPolicyNotReady": {fires: `prebind_policies{state="not_ready"} 1x30`, not: map[string]string{
			"ready": "prebind_policies{state=\"not_ready\"} 0x30\nprebind_policies{state=\"in_force\"} 3x30",
		}},
		"PrebindHandlerSilent": {fires: `prebind_policy_tasks{handler="example.com/prefetch",state="waiting"} 3x30`, not: map[string]string{
			"it works":      "prebind_policy_tasks{handler=\"example.com/prefetch\",state=\"waiting\"} 3x30\nprebind_policy_task_duration_seconds_count{handler=\"example.com/prefetch\",result=\"ready\"} 0+1x30",
			"nothing to do": `prebind_policy_tasks{handler="example.com/prefetch",state="ready"} 3x30`,
		}},
		"PrebindCertificateExpiring": {fires: `prebind_certificate_expiration_timestamp_seconds{certificate="serving"} 172000x30`, not: map[string]string{
			"a self-managed one is to be renewed about now": `prebind_certificate_expiration_timestamp_seconds{certificate="serving"} 201600x30`,
			"it is to be renewed about now":                 `prebind_certificate_expiration_timestamp_seconds{certificate="serving"} 2588400x30`,
		}},
		"PrebindCertificateExpired": {fires: `prebind_certificate_expiration_timestamp_seconds{certificate="serving"} 600x30`, not: map[string]string{
			"a minute is left": `prebind_certificate_expiration_timestamp_seconds{certificate="serving"} 1860x30`,
		}},
		"PrebindConfigsDiffer": {fires: `prebind_config_info{pod="b",hash="2"} 1x30
			prebind_config_info{pod="b",hash="1"} _x30`, not: map[string]string{
			"both have changed": "prebind_config_info{pod=\"a\",hash=\"2\"} 1x30\nprebind_config_info{pod=\"b\",hash=\"2\"} 1x30\nprebind_config_info{pod=\"a\",hash=\"1\"} _x30\nprebind_config_info{pod=\"b\",hash=\"1\"} _x30",
		}},
	}
	engine := promqltest.NewTestEngine(t, false, 0, 1_000_000)
	for _, alert := range alerts(t) {
		tc, ok := cases[alert.Alert]
		if !assert.True(t, ok, "%s is tried out nowhere", alert.Alert) {
			continue
		}
		t.Run(alert.Alert, func(t *testing.T) {
			expr := alert.Expr.String()
			assert.NotEmpty(t, query(t, engine, expr, well, tc.fires), "it should fire")
			if tc.also != "" {
				assert.NotEmpty(t, query(t, engine, expr, well, tc.also), "it should fire")
			}
			assert.Empty(t, query(t, engine, expr, well, ""), "all is well")
			for near, series := range tc.not {
				assert.Empty(t, query(t, engine, expr, well, series), "%s", near)
			}
		})
	}
}

// query returns what the expression finds at the end of the series, where those of
// instead replace those of base.
func query(t *testing.T, engine *promql.Engine, expr, base, instead string) promql.Vector {
	t.Helper()
	var names []string
	points := map[string]string{}
	for line := range strings.Lines(base + "\n" + instead) {
		name, values, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		if points[name] == "" {
			names = append(names, name)
		}
		points[name] = values
	}
	load := "load 1m\n"
	for _, name := range names {
		load += "  " + name + " " + points[name] + "\n"
	}
	storage := promqltest.LoadedStorage(t, load)
	defer func() { assert.NoError(t, storage.Close()) }()
	q, err := engine.NewInstantQuery(t.Context(), storage, nil, expr, time.Unix(minutes*60, 0))
	require.NoError(t, err)
	defer q.Close()
	result, err := q.Exec(t.Context()).Vector()
	require.NoError(t, err)
	// The result belongs to the query.
	return append(promql.Vector{}, result...)
}
