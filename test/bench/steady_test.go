// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
)

// ownUser is the user name of Prebind.
const ownUser = "system:serviceaccount:" + install.Namespace + ":prebind"

// ownPolicy is an audit policy that logs only the requests of Prebind.
const ownPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: Metadata
  users: ["` + ownUser + `"]
- level: None
`

// TestSteadyState counts the reads and writes of Prebind for binds without side effects, from the API server's
// audit log. Prebind needs none, because its caches contain all required objects. The test does not count
// requests that are independent of binds.
func TestSteadyState(t *testing.T) {
	t.Parallel()
	const binds = 300
	dir := t.TempDir()
	policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	require.NoError(t, os.WriteFile(policy, []byte(ownPolicy), 0o600))
	r := newRivals(t, cluster.Options{WithoutScheduler: true, WithoutProvisioner: true, ExtraArgs: map[string][]string{
		cluster.APIServer: {"--audit-policy-file=" + policy, "--audit-log-path=" + log, "--audit-log-format=json", "--audit-log-mode=blocking"},
	}}, cluster.Nodes("node", 3), shipped{}, prebind)
	ctx := t.Context()
	process := r.processes[prebind]
	require.NoError(t, process.Run(ctx))
	pods, err := r.create(ctx, prebind, "steady", binds)
	require.NoError(t, err)
	require.NoError(t, r.calm(ctx, prebind))

	began := time.Now()
	_, err = r.bindAll(ctx, 4, pods)
	require.NoError(t, err)
	require.NoError(t, r.calm(ctx, prebind), "requests after the binds are also counted")
	ended := time.Now()
	require.NoError(t, r.check(ctx, prebind, pods[binds-1].Name))

	reads, writes := asked(t, log, began, ended)
	assert.Empty(t, reads, "%d binds", binds)
	assert.Empty(t, writes, "%d binds", binds)
	_, err = r.bindAll(ctx, 1, []*corev1.Pod{gen.Pod("not-cached", gen.InNamespace(prebind), gen.UID("1"))})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	others, _ := asked(t, log, ended, time.Now())
	assert.Equal(t, []string{"get /api/v1/namespaces/prebind/pods/not-cached?timeout=1m10s"}, others, "Prebind reads a pod that is not in its cache, and the log contains that request")
	out := &results{name: "steady"}
	out.add(prebind, 0, "binds", binds)
	out.add(prebind, 0, "live reads/bind", float64(len(reads))/binds)
	out.add(prebind, 0, "writes/bind", float64(len(writes))/binds)
	require.NoError(t, out.save())
}

// asked returns the requests of Prebind in this period from the log. It omits requests for leases, health
// checks of the API server, the FlowSchema and watches.
func asked(t *testing.T, log string, from, to time.Time) (reads, writes []string) {
	t.Helper()
	content, err := os.ReadFile(log)
	require.NoError(t, err)
	for line := range bytes.Lines(content) {
		var event cluster.AuditEvent
		require.NoError(t, json.Unmarshal(line, &event))
		require.Equal(t, ownUser, event.User.Username)
		at := event.RequestReceivedTimestamp.Time
		if at.Before(from) || at.After(to) || event.Verb == "watch" || event.ObjectRef == nil ||
			slices.Contains([]string{"leases", "flowschemas"}, event.ObjectRef.Resource) {
			continue
		}
		what := fmt.Sprintf("%s %s", event.Verb, event.RequestURI)
		if slices.Contains([]string{"get", "list"}, event.Verb) {
			reads = append(reads, what)
		} else {
			writes = append(writes, what)
		}
	}
	return reads, writes
}
