// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/prebind/prebind/internal/replica"
	"github.com/prebind/prebind/internal/work"
)

func TestStatusOptions_Text(t *testing.T) {
	now := time.Now()
	o := &statusOptions{clock: clocktesting.NewFakeClock(now), own: "own"}
	var out bytes.Buffer
	o.text(&out, nil)
	assert.Equal(t, "No replica of Prebind has a lease in namespace own.\n", out.String())

	ago := func(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }
	all := []replica.Status{
		{Replica: "aaa", Pod: "prebind-1", Version: "v1", Config: "123", Mode: "Enforce", Attempts: map[string]int{"preparing": 3, "prepared": 1}, LeftOut: 3, Holds: 2, MaxHolds: 32, Reported: ago(3 * time.Second), InFlight: []work.InFlight{
			{Namespace: "shop", Pod: "web", Node: "a", Attempt: "aaa-1", Phase: "preparing", Plugin: "q", WaitsFor: "rain", Since: ago(time.Minute), Budget: metav1.Duration{Duration: 10 * time.Minute}},
		}},
		{Replica: "bbb", Leader: true, Problem: "draining", Reported: ago(time.Second), InFlight: []work.InFlight{
			{Namespace: "shop", Pod: "old", Node: "b", Attempt: "bbb-1", Phase: "prepared", Since: ago(time.Hour), Budget: metav1.Duration{Duration: time.Hour}},
			{Namespace: "other", Pod: "web", Node: "b", Attempt: "bbb-2", Phase: "prepared", Since: ago(time.Second), Budget: metav1.Duration{Duration: time.Hour}},
		}},
		{Replica: "ccc", Reported: ago(time.Minute)},
	}
	const replicas = `REPLICA   LEADER   POD         VERSION   MODE      CONFIG   PREPARING   PREPARED   HOLDS   REPORTED   READY
aaa       no       prebind-1   v1        Enforce   123      3           1          2/32    3s ago     yes
bbb       yes      -           -         -         -        0           0          0/0     1s ago     no: draining
ccc       no       -           -         -         -        0           0          0/0     60s ago    unknown: no report for 60s, by the clock of this computer

`
	const leftOut = `
3 more binds are not reported: a replica reports at most 64 KiB.
`
	for _, tc := range []struct{ reason, namespace, pod, binds string }{
		{"without filters, all are shown, the oldest first", "", "", `NAMESPACE   POD   NODE   REPLICA   PHASE       AGE   TIMEOUT   PLUGIN   WAITING FOR
shop        old   b      bbb       prepared    60m   60m       -        -
shop        web   a      aaa       preparing   60s   10m       q        rain
other       web   b      bbb       prepared    1s    60m       -        -
`},
		{"the filters apply together", "shop", "web", `NAMESPACE   POD   NODE   REPLICA   PHASE       AGE   TIMEOUT   PLUGIN   WAITING FOR
shop        web   a      aaa       preparing   60s   10m       q        rain
`},
		{"a namespace is matched exactly", "sho", "", "No binds in progress.\n"},
	} {
		o.namespace, o.pod = tc.namespace, tc.pod
		shown := make([]replica.Status, len(all))
		for i, s := range all {
			s.InFlight = append([]work.InFlight{}, s.InFlight...)
			shown[i] = s
		}
		o.filter(shown)
		out.Reset()
		o.text(&out, shown)
		assert.Equal(t, replicas+tc.binds+leftOut, out.String(), tc.reason)
	}
}

func TestHealth(t *testing.T) {
	now := time.Now()
	ahead := func(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }
	for want, s := range map[string]replica.Status{
		"yes":                                   {},
		"no: draining":                          {Problem: "draining"},
		"yes; its clock is 60m ahead":           {ClockAhead: ahead(time.Hour)},
		"no: draining; its clock is 90s behind": {Problem: "draining", ClockAhead: ahead(-90 * time.Second)},
	} {
		s.Reported = metav1.NewTime(now)
		assert.Equal(t, want, health(s, now))
	}
}

func TestTextWaits(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	waits := func(pod, plugin, what string, waited time.Duration) work.InFlight {
		return work.InFlight{
			Namespace: "shop", Pod: pod, Node: "a", Phase: work.Waiting, Plugin: plugin, WaitsFor: what,
			Since: metav1.NewTime(now.Add(-waited)), Budget: metav1.Duration{Duration: 10 * time.Minute},
		}
	}
	all := []replica.Status{
		{Holds: 3, LeftOut: 2, InFlight: []work.InFlight{
			waits("web-0", "volumebinding", "PersistentVolumeClaim shop/data-0: to be bound", time.Minute),
			waits("model", "policy", "BindPolicy model: task prefetch of example.com/prefetch: 3 of 5 layers", 3*time.Minute),
			{Namespace: "shop", Pod: "ready", Phase: work.Allowed, Since: metav1.NewTime(now.Add(-time.Hour))},
		}},
		{Holds: 1, InFlight: []work.InFlight{
			waits("web-1", "volumebinding", "PersistentVolumeClaim shop/data-1: to be bound", 5*time.Minute),
			waits("turn", "start-limit", "its turn", time.Second),
			waits("model", "policy", "BindPolicy model: task prefetch of example.com/prefetch: 4 of 5 layers", 2*time.Minute), // Both replicas have held it.
		}},
		{Holds: 7, InFlight: []work.InFlight{waits("old", "policy", "a replica that has stopped", 3*time.Hour)}},
	}
	for i := range all[:2] {
		all[i].Reported = metav1.NewTime(now)
	}
	var out bytes.Buffer
	textWaits(&out, all, now)
	assert.Equal(t, `12:00:00  4 binds wait, 4 calls are held, 2 replicas

BINDS   OLDEST   TIMEOUT   POD          NODE   PLUGIN          WAITING FOR
2       5m       10m       shop/web-1   a      volumebinding   PersistentVolumeClaim: to be bound
1       3m       10m       shop/model   a      policy          BindPolicy model: task prefetch of example.com/prefetch: 4 of 5 layers
1       1s       10m       shop/turn    a      start-limit     its turn

2 more binds are not reported: a replica reports at most 64 KiB.
`, out.String())

	out.Reset()
	textWaits(&out, all[2:], now)
	assert.Contains(t, out.String(), "No replica has reported for 30s, by the clock of this computer", "the clock can be ahead")

	out.Reset()
	textWaits(&out, nil, now)
	assert.Equal(t, "12:00:00  0 binds wait, 0 calls are held, 0 replicas\n\n", out.String())
}

const (
	webhooksPath = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
	bindingsPath = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
	policiesPath = "/apis/policy.prebind.dev/v1alpha1/bindpolicies"
	tasksPath    = "/apis/policy.prebind.dev/v1alpha1/bindtasks"
	rolloutPath  = "/apis/apps/v1/namespaces/own/deployments/prebind"
)

// TestFindings checks each finding by a cluster that differs in one list, or in the Deployment, from one without findings. The API server
// answers 404 to those that are missing, as if the user had no permission.
func TestFindings(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	ready := replica.Status{Replica: "aaa", Version: "v1", Config: "1", Mode: "Enforce", Reported: metav1.NewTime(now)}
	changed := func(change func(s *replica.Status)) replica.Status {
		s := ready
		change(&s)
		return s
	}
	audits := changed(func(s *replica.Status) { s.Mode = "Audit" })
	draining := changed(func(s *replica.Status) { s.Problem = "draining" })
	silent := changed(func(s *replica.Status) { s.Reported = metav1.NewTime(now.Add(-time.Hour)) })
	off := changed(func(s *replica.Status) { s.Mode = "Off" })
	answers := reach{answered: true}
	const elsewhere = `{"metadata": {"name": "ours"}, "webhooks": [{"name": "pods-binding.prebind.dev", "clientConfig": {"service": {"namespace": "other"}}}]}`
	const ignores = `{"metadata": {"name": "mine"}, "webhooks": [{"name": "other"}, {"name": "pods-binding.prebind.dev", "failurePolicy": "Ignore", ` +
		`"namespaceSelector": {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["own"]}]}}]}`
	rollout := func(observed, replicas, updated, available int) string {
		return fmt.Sprintf(`{"metadata": {"generation": 2}, "spec": {"replicas": 2}, "status": {"observedGeneration": %d, "replicas": %d, "updatedReplicas": %d, "availableReplicas": %d}}`,
			observed, replicas, updated, available)
	}
	const unknown = "unknown"
	const later = "in mode Enforce"
	task := func(handler, created, more string) string {
		return fmt.Sprintf(`{"metadata": {"name": "t", "creationTimestamp": %q}, "spec": {"handler": %q, "attempts": ["a-1"]}, %s}`, created, handler, more)
	}
	const waits, done, failed = `"status": {}`, `"status": {"conditions": [{"type": "Ready", "status": "True"}]}`, `"status": {"conditions": [{"type": "Failed", "status": "True"}]}`
	for name, tc := range map[string]struct {
		reason   string
		path     string
		items    string
		replicas []replica.Status
		// rollout is the Deployment if its rollout is not complete, or unknown.
		rollout string
		reached reach
		want    []string
	}{
		"None":                {reason: "there is no work"},
		"NotReady":            {reason: "the reason and the page with its fix are shown", replicas: []replica.Status{ready, draining}, want: []string{"replica aaa is not ready: no: draining: see ", "operations.md#replicas-are-not-ready"}},
		"NoneReady":           {reason: "a replica reports it, and the other is silent", replicas: []replica.Status{draining, silent}, want: []string{"[no replica is ready. If this stays", "kubectl delete mutatingwebhookconfiguration ours", "unknown: no report for 60m"}},
		"Lacks":               {reason: "the replicas serve, but from old objects", replicas: []replica.Status{changed(func(s *replica.Status) { s.Lacks = "role is missing" })}, want: []string{"[replica aaa decides from old objects: role is missing"}},
		"Silent":              {reason: "the clock of this computer can be ahead", replicas: []replica.Status{silent, silent}, want: []string{"[replica aaa is not ready: unknown: no report for 60m"}},
		"Elsewhere":           {reason: "the replicas in the namespace of the flag are not those of the webhook", path: webhooksPath, items: elsewhere, replicas: []replica.Status{}, want: []string{"[MutatingWebhookConfiguration ours calls Prebind in namespace other: use --prebind-namespace=other]"}},
		"ElsewhereDead":       {reason: "the error shows that no pod is bound", path: webhooksPath, items: elsewhere, replicas: []replica.Status{}, reached: reach{failure: "no endpoints"}, want: []string{"[no endpoints. With"}},
		"Unreachable":         {reason: "the error comes before old reports", reached: reach{failure: "no endpoints"}, want: []string{"[no endpoints. With", "kubectl delete mutatingwebhookconfiguration ours"}},
		"Slow":                {reason: "it may be another webhook, or Prebind is cut off", reached: reach{failure: "no answer within", slow: true}, want: []string{"[no answer within. If pods are not bound: to bind pods without Prebind: kubectl delete"}},
		"Restarted":           {reason: "the reports are older than the answer", reached: answers, replicas: []replica.Status{draining}, want: []string{"[replica aaa is not ready"}},
		"SilentIgnore":        {reason: "binds go on", path: webhooksPath, items: ignores, replicas: []replica.Status{draining}, want: []string{"[replica aaa", "mine is Ignore"}},
		"NoReplica":           {reason: "nothing has a lease", replicas: []replica.Status{}, want: []string{"[no replica is ready. If this stays"}},
		"Unregistered":        {reason: "the API server does not call Prebind", path: webhooksPath, want: []string{"no MutatingWebhookConfiguration has the webhook pods-binding.prebind.dev"}},
		"Ignore":              {reason: "the third step of the rollout is missing", path: webhooksPath, items: ignores, reached: answers, want: []string{"mine is Ignore", "step 3", "install.md#roll-out", `kubectl patch mutatingwebhookconfiguration mine`, `"path": "/webhooks/1/failurePolicy", "value": "Fail"`}},
		"IgnoreOne":           {reason: "Fail needs two replicas", path: webhooksPath, items: ignores, replicas: []replica.Status{ready}, reached: answers, want: []string{"mine is Ignore", later}},
		"IgnoreRollout":       {reason: "the rollout is not complete", path: webhooksPath, items: ignores, replicas: []replica.Status{ready, changed(func(s *replica.Status) { s.Config = "2" })}, want: []string{later}},
		"IgnoreNamespace":     {reason: "after a stop of the cluster, Fail would stop the binds of Prebind's own pods", path: webhooksPath, items: strings.Replace(ignores, "own", "kube-system", 1), reached: answers, want: []string{"mine is Ignore", "pods without it. Before you set Fail, add Prebind's namespace own to the names in namespaceSelector: see "}},
		"IgnoreCrash":         {reason: "a new pod does not start, and the old pods would not either", path: webhooksPath, items: ignores, rollout: rollout(2, 3, 1, 2), reached: answers, want: []string{"[the rollout of Prebind is not complete", "kubectl -n own get pods", "mine is Ignore", later}},
		"IgnoreCrashAll":      {reason: "two old pods are available", path: webhooksPath, items: ignores, rollout: rollout(2, 4, 2, 2), reached: answers, want: []string{"[the rollout of Prebind is not complete"}},
		"IgnoreCrashLate":     {reason: "the old pods have ended", path: webhooksPath, items: ignores, rollout: rollout(2, 2, 2, 1), reached: answers, want: []string{"[the rollout of Prebind is not complete"}},
		"IgnorePaused":        {reason: "all pods are old", path: webhooksPath, items: ignores, rollout: rollout(2, 2, 0, 2), reached: answers, want: []string{"[the rollout of Prebind is not complete"}},
		"IgnoreChanged":       {reason: "the status is that of an earlier generation", path: webhooksPath, items: ignores, rollout: rollout(1, 2, 2, 2), reached: answers, want: []string{"[the rollout of Prebind is not complete"}},
		"IgnoreUnknown":       {reason: "the user may not read the Deployment", path: webhooksPath, items: ignores, rollout: unknown, reached: answers, want: []string{"[failurePolicy", "mine is Ignore", "pods without it. Before you set Fail, check that the rollout of Prebind is complete. This command cannot: "}},
		"AuditCrash":          {reason: "Enforce would be the next change of the same Deployment", rollout: rollout(2, 3, 1, 2), replicas: []replica.Status{audits, audits}, reached: answers, want: []string{"[the rollout of Prebind is not complete", "operations.md#pods-do-not-start]"}},
		"AuditUnknown":        {reason: "with Ignore, binds go on", rollout: unknown, replicas: []replica.Status{audits, audits}, reached: answers, want: []string{"[mode is Audit", "--set config.mode=Enforce"}},
		"Audit":               {reason: "the second step of the rollout is missing", replicas: []replica.Status{audits, audits}, reached: answers, want: []string{"reason=BindAudited", "--set config.mode=Enforce"}},
		"AuditIgnore":         {reason: "Ignore is right until Prebind enforces", path: webhooksPath, items: ignores, replicas: []replica.Status{audits, audits}, reached: answers, want: []string{"mode is Audit"}},
		"AuditPolicies":       {reason: "a policy that is not ready could reject each bind", path: policiesPath, items: `{"metadata": {"name": "new"}}`, replicas: []replica.Status{audits, audits}, reached: answers, want: []string{"[BindPolicies are not ready: new"}},
		"AuditPoliciesSilent": {reason: "the policy does not hide that nothing is audited", path: policiesPath, items: `{"metadata": {"name": "new"}}`, replicas: []replica.Status{audits, audits}, want: []string{"[Prebind has not answered a test Binding"}},
		"FailExempt":          {reason: "the end of break glass was forgotten", reached: reach{passed: true}, want: []string{"[Prebind has not answered a test Binding"}},
		"AuditSilent":         {reason: "an audit without Bindings shows nothing", replicas: []replica.Status{audits, audits}, want: []string{"[Prebind has not answered a test Binding"}},
		"IgnoreSilent":        {reason: "with Fail, a webhook that the API server cannot call would stop all binds, whenever it has called it before", path: webhooksPath, items: ignores, want: []string{"[Prebind has not answered a test Binding"}},
		"Off":                 {reason: "the end of an emergency was forgotten", replicas: []replica.Status{off, off}, want: []string{"[mode is Off: pods are bound without checks"}},
		"IgnoreOff":           {reason: "in mode Off, Prebind answers without an explanation", path: webhooksPath, items: ignores, replicas: []replica.Status{off, off}, want: []string{"[mode is Off: pods are bound without checks"}},
		"AuditOne":            {reason: "one replica can enforce while failurePolicy is Ignore", replicas: []replica.Status{audits}, reached: answers, want: []string{"--set config.mode=Enforce"}},
		"Policies":            {reason: "policies are named with the reason", path: policiesPath, items: `{"metadata": {"name": "rack"}, "status": {"conditions": [{"type": "Ready", "status": "False", "reason": "CompileError"}]}}, {"metadata": {"name": "new"}}, {"metadata": {"name": "fine"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}`, want: []string{"BindPolicies are not ready: rack (CompileError), new (no replica has reported it since its last change): "}},
		"PolicyEdited":        {reason: "the status is that of an earlier generation", path: policiesPath, items: `{"metadata": {"name": "rack", "generation": 2}, "status": {"conditions": [{"type": "Ready", "status": "True", "observedGeneration": 1}]}}, {"metadata": {"name": "fine", "generation": 2}, "status": {"conditions": [{"type": "Ready", "status": "True", "observedGeneration": 2}]}}`, want: []string{"BindPolicies are not ready: rack (no replica has reported it since its last change): "}},
		"PolicyAudit":         {reason: "the end of the audit can be forgotten", path: policiesPath, items: `{"metadata": {"name": "rack"}, "spec": {"mode": "Audit"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}`, want: []string{"[BindPolicies only report (mode Audit): rack. "}},
		"Annotations":         {reason: "no policy", path: bindingsPath, want: []string{"can come too late"}},
		"OtherPolicy":         {reason: "another policy does not help", path: bindingsPath, items: `{"spec": {"policyName": "other", "validationActions": ["Deny"]}}`, want: []string{"can come too late"}},
		"Warns":               {reason: "warnings deny no patch", path: bindingsPath, items: `{"spec": {"policyName": "annotations.prebind.dev", "validationActions": ["Warn"]}}`, want: []string{"can come too late"}},
		"Tasks": {reason: "only tasks whose handler has work count", path: tasksPath, items: task("a.com/slow", "2026-01-01T11:50:00Z", waits) + "," + task("a.com/slow", "2026-01-01T11:59:50Z", waits) + "," +
			task("a.com/done", "2026-01-01T10:00:00Z", done) + "," + task("a.com/failed", "2026-01-01T10:00:00Z", failed) + "," + task("a.com/less", "2026-01-01T11:55:00Z", waits), want: []string{"handler a.com/slow has not finished 2 BindTasks, the oldest for 10m"}},
		"Undoing":     {reason: "the time counts from the deletion", path: tasksPath, items: `{"metadata": {"deletionTimestamp": "2026-01-01T11:57:00Z"}, "spec": {"handler": "a.com/x"}, ` + done + `}`, want: []string{"a.com/x has not finished 1 BindTasks, the oldest for 3m"}},
		"BoundTask":   {reason: "the pod was bound without it", path: tasksPath, items: `{"metadata": {"creationTimestamp": "2026-01-01T11:00:00Z"}, "spec": {"handler": "a.com/x"}, ` + waits + `}`},
		"RecentTasks": {reason: "a task needs some time", path: tasksPath, items: task("a.com/x", "2026-01-01T11:59:30Z", waits)},
		"Permission":  {reason: "what the user may not read is omitted", path: "all"},
	} {
		t.Run(name, func(t *testing.T) {
			lists := map[string]string{
				webhooksPath: `{"metadata": {"name": "ours"}, "webhooks": [{"name": "pods-binding.prebind.dev", "clientConfig": {"service": {"namespace": "own"}}}]}`,
				bindingsPath: `{"spec": {"policyName": "annotations.prebind.dev", "validationActions": ["Deny"]}}`,
				policiesPath: "", tasksPath: "",
				rolloutPath: cmp.Or(tc.rollout, rollout(2, 2, 2, 2)),
			}
			if _, exists := lists[tc.path]; exists {
				lists[tc.path] = tc.items
			}
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				items, exists := lists[r.URL.Path]
				if !exists || tc.path == "all" || items == unknown {
					http.NotFound(w, r)
					return
				}
				w.Header().Set("Content-Type", "application/json")
				if r.URL.Path != rolloutPath {
					items = fmt.Sprintf(`{"items": [%s]}`, items)
				}
				_, _ = io.WriteString(w, items)
			}))
			t.Cleanup(server.Close)
			client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
			require.NoError(t, err)
			if tc.replicas == nil {
				tc.replicas = []replica.Status{ready, ready}
			}
			got := findings(t.Context(), client, "own", tc.replicas, tc.reached, now)
			if tc.want == nil {
				assert.Empty(t, got, tc.reason)
			}
			if slices.ContainsFunc(tc.replicas, func(s replica.Status) bool { return s.Mode == "Audit" }) {
				assert.NotContains(t, fmt.Sprint(got), "failurePolicy", "Ignore is right until Prebind enforces")
			}
			if tc.rollout != "" {
				assert.NotContains(t, fmt.Sprint(got), "kubectl patch", tc.reason)
			}
			for _, words := range tc.want {
				assert.Contains(t, fmt.Sprint(got), words, tc.reason)
			}
			assert.NotContains(t, fmt.Sprint(got), "\n", "a finding is one line")
		})
	}
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "localhost:1"})
	require.NoError(t, err)
	assert.Empty(t, findings(t.Context(), client, "own", nil, reach{}, now), "without an answer, there are no findings")
}

func TestProbe(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		code   int32
		says   string
		warns  string
		want   reach
	}{
		"Dead":      {reason: "the API server cannot call Prebind", code: http.StatusInternalServerError, says: `failed calling webhook "pods-binding.prebind.dev": no endpoints`, want: reach{failure: `the API server cannot call Prebind: failed calling webhook "pods-binding.prebind.dev": no endpoints`}},
		"Other":     {reason: "another webhook fails", code: http.StatusInternalServerError, says: `failed calling webhook "other": no endpoints`},
		"Forbidden": {reason: "the user may not create Bindings", code: http.StatusForbidden, says: "cannot create resource"},
		"Answered":  {reason: "an explanation is only from Prebind, also if it is of another version", code: http.StatusNotFound, says: "not found", warns: "prebind: explanation of another version", want: reach{answered: true}},
		"Passed":    {reason: "the API server looked for the pod", code: http.StatusNotFound, says: "not found", want: reach{passed: true}},
		"Timeout":   {reason: "the API server gave up, as with --request-timeout", code: http.StatusGatewayTimeout, says: "timeout", want: reach{failure: "no answer to a test Binding: Prebind, another webhook or the API server is slow: timeout", slow: true}},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				assert.Equal(t, "/api/v1/namespaces/default/pods/prebind-status/binding?dryRun=All", r.URL.RequestURI())
				if tc.warns != "" {
					w.Header().Set("Warning", `299 - "`+tc.warns+`"`)
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(int(tc.code))
				_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: tc.code, Message: tc.says})
			}))
			t.Cleanup(server.Close)
			assert.Equal(t, tc.want, probe(t.Context(), &rest.Config{Host: server.URL}), tc.reason)
		})
	}
}

// TestProbe_Slow checks that an API server that does not answer in time is not one that cannot call Prebind.
func TestProbe_Slow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := probe(t.Context(), &rest.Config{Host: "prebind.test", Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})})
		assert.True(t, got.slow)
		assert.Contains(t, got.failure, "no answer to a test Binding: Prebind, another webhook or the API server is slow: ")
	})
}

type roundTripper func(r *http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestStatus_Interrupted checks that status reports no failure of Prebind if it is interrupted.
func TestStatus_Interrupted(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			interrupt()
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprint(w, `{"items": []}`)
	}))
	t.Cleanup(server.Close)
	t.Setenv("KUBECONFIG", "testdata/no-such-file")
	cmd := NewCommand()
	cmd.SetArgs([]string{"status", "--server=" + server.URL})
	var out bytes.Buffer
	cmd.SetOut(&out)
	require.ErrorIs(t, cmd.ExecuteContext(ctx), context.Canceled)
	assert.Empty(t, out.String())
}
