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

// ownUser is who Prebind is to the API server.
const ownUser = "system:serviceaccount:" + install.Namespace + ":prebind"

// ownPolicy has the API server log what Prebind asks of it, and nothing else.
const ownPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: Metadata
  users: ["` + ownUser + `"]
- level: None
`

// TestSteadyState counts, by the API server's own log, what Prebind reads and writes
// for binds without side effects: nothing, for all that it needs is in its caches. What
// it asks for at any time, whether pods are bound or not, is not counted.
func TestSteadyState(t *testing.T) {
	const binds = 300
	dir := t.TempDir()
	policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	require.NoError(t, os.WriteFile(policy, []byte(ownPolicy), 0o600))
	r := newRivals(t, cluster.Options{WithoutScheduler: true, WithoutProvisioner: true, ExtraArgs: map[string][]string{
		cluster.APIServer: {"--audit-policy-file=" + policy, "--audit-log-path=" + log, "--audit-log-format=json", "--audit-log-mode=blocking"},
	}}, cluster.Nodes("node", 3), prebind)
	ctx := t.Context()
	process := r.processes[prebind]
	require.NoError(t, process.Start())
	require.NoError(t, process.WaitReady(ctx))
	pods, err := r.create(ctx, prebind, "steady", binds)
	require.NoError(t, err)
	require.NoError(t, r.calm(ctx, prebind))

	began := time.Now()
	_, err = r.bindAll(ctx, 4, pods)
	require.NoError(t, err)
	require.NoError(t, r.calm(ctx, prebind), "what it does afterwards counts as well")
	ended := time.Now()
	require.NoError(t, r.check(ctx, prebind, pods[binds-1].Name))

	reads, writes := asked(t, log, began, ended)
	assert.Empty(t, reads, "%d binds", binds)
	assert.Empty(t, writes, "%d binds", binds)
	_, err = r.bindAll(ctx, 1, []*corev1.Pod{gen.Pod("nobody", gen.InNamespace(prebind), gen.UID("1"))})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	others, _ := asked(t, log, ended, time.Now())
	assert.Equal(t, []string{"get /api/v1/namespaces/prebind/pods/nobody"}, others, "a pod that is not in the cache is read: the log tells of it")
	out := &results{name: "steady"}
	out.add(prebind, 0, "binds", binds)
	out.add(prebind, 0, "live reads/bind", float64(len(reads))/binds)
	out.add(prebind, 0, "writes/bind", float64(len(writes))/binds)
	require.NoError(t, out.save())
}

// asked returns what Prebind has read and written in this time, by the log, but for
// its leases, the questions for its own permissions and for whether the API server is
// there, the FlowSchema and the watches.
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
			slices.Contains([]string{"leases", "selfsubjectaccessreviews", "flowschemas"}, event.ObjectRef.Resource) {
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
