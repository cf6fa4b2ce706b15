// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/internal/work"
	"github.com/prebind/prebind/test/gen"
)

// explained is the JSON output of kubectl prebind explain.
type explained struct {
	Verdict  binder.Verdict
	Reason   string
	Prebind  *binder.Explanation
	Warnings []string
}

// command runs the program as an administrator, and returns its standard output, its standard error and its exit code.
func (b *bench) command(args ...string) (stdout, stderr string, code int) {
	b.t.Helper()
	cmd := exec.CommandContext(b.t.Context(), shared.prebind.Client(), args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Env = append(os.Environ(), "KUBECONFIG="+b.cluster.Kubeconfig())
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return out.String(), errs.String(), exit.ExitCode()
	}
	require.NoError(b.t, err)
	return out.String(), errs.String(), 0
}

// explain explains the bind of the pod "pod".
func (b *bench) explain(node string, args ...string) (explained, int) {
	b.t.Helper()
	out, errs, code := b.command(append([]string{"explain", "pod", "--node=" + node, "--namespace=" + b.ns, "-o=json"}, args...)...)
	assert.Empty(b.t, errs)
	var x explained
	require.NoError(b.t, json.Unmarshal([]byte(out), &x), "%s", out)
	return x, code
}

// plugin is the result of one plugin.
func (x explained) plugin(name string) binder.PluginExplanation {
	for _, p := range x.Prebind.Plugins {
		if p.Name == name {
			return p
		}
	}
	return binder.PluginExplanation{}
}

// The bind does what explain reports.
func TestExplain(t *testing.T) {
	t.Parallel()
	t.Run("a pod that is bound at once", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, shared, nil)
		b.pod(byHand)
		x, code := b.explain("node-1")
		assert.Equal(t, 0, code)
		assert.Equal(t, binder.VerdictBind, x.Verdict)
		assert.Equal(t, binder.PluginReady, x.plugin("volumebinding").Verdict)
		assert.Equal(t, binder.PluginNotAsked, x.plugin("device").Verdict)
		assert.NotEmpty(t, x.Prebind.Annotations)

		require.NoError(t, b.bindByHand(b.binding("node-1")))
		pod := b.untilBound()
		assert.Equal(t, pod.Annotations, x.Prebind.Annotations, "the pod should have exactly the reported annotations")
		b.assertTopology(pod)

		out, errs, code := b.command("explain", "pod", "--namespace="+b.ns)
		assert.Equal(t, 0, code, "%s", errs)
		assert.Contains(t, out, "Pod "+b.ns+"/pod: bound to node node-1 since 20")
		assert.Contains(t, out, "topology.prebind.dev/zone")
	})

	t.Run("a pod that is refused", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, shared, nil)
		b.pod(byHand, "missing", "lost")
		x, code := b.explain("node-3", "--annotation=device.prebind.dev/gpu=", "--annotation=node-state.prebind.dev/expect=e2e/none=there")
		assert.Equal(t, 2, code)
		assert.Equal(t, binder.VerdictRefuse, x.Verdict)
		assert.Equal(t, binder.PluginRejects, x.plugin("node-state").Verdict)
		assert.Equal(t, binder.PluginRejects, x.plugin("device").Verdict, "all rejections are reported")
		assert.Equal(t, binder.PluginRejects, x.plugin("volumebinding").Verdict)

		assert.Empty(t, b.events(), "explain should not change objects")
		err := b.bindByHand(b.binding("node-3", gen.Annotation("node-state.prebind.dev/expect", "e2e/none=there")))
		assert.True(t, apierrors.IsForbidden(err))
		assert.Equal(t, err.Error(), x.Reason, "the denial should have the reported message")

		b.untilEvent("BindRefused")
		out, errs, code := b.command("explain", "pod", "--namespace="+b.ns, "--annotation=node-state.prebind.dev/expect=e2e/none=there")
		assert.Equal(t, 2, code, "%s", errs)
		assert.Regexp(t, `^node-3, from the event BindRefused of \d+s ago; choose another one with --node\n$`, errs)
		assert.Contains(t, out, "to node node-3: would be rejected")
	})
}

// status shows the waits of all replicas.
func TestStatus(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	b.claim("data", b.dynamic("10m"))
	b.podWith(byHand, gen.UsesClaim("data"), gen.Annotation("binder.prebind.dev/timeout", "29m"))
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error, 1)
	go func() {
		waiting <- b.client.CoreV1().Pods(b.ns).Bind(ctx, b.binding("node-5"), metav1.CreateOptions{})
	}()
	type status struct {
		Leader   bool
		InFlight []work.InFlight
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		out, errs, code := b.command("status", "-o=json", "--pod=pod", "-n="+b.ns)
		require.Equal(c, 0, code, errs)
		var all []status
		require.NoError(c, json.Unmarshal([]byte(out), &all))
		var found *work.InFlight
		leaders := 0
		for _, s := range all {
			if s.Leader {
				leaders++
			}
			for i := range s.InFlight {
				if s.InFlight[i].Namespace == b.ns {
					found = &s.InFlight[i]
				}
			}
		}
		assert.Equal(c, 1, leaders, "one replica should be the leader: %s", out)
		require.NotNil(c, found, "%s", out)
		assert.Equal(c, "pod", found.Pod)
		assert.Equal(c, "node-5", found.Node)
		assert.Contains(c, []string{"preparing", "waiting"}, found.Phase, "another replica may have written")
		assert.Equal(c, "volumebinding", found.Plugin)
		assert.Contains(c, found.WaitsFor, "PersistentVolumeClaim "+b.ns+"/data: provisioning on node-5")
	}, patience, again)
	out, _, code := b.command("status")
	assert.Equal(t, 0, code)
	for _, words := range []string{"REPLICA", "Enforce", "WAITING FOR", b.ns, "volumebinding", "29m"} {
		assert.Contains(t, out, words)
	}
	t.Logf("text output:\n%s", out)
	_, errs, _ := b.command("explain", "pod", "-n="+b.ns)
	assert.Contains(t, errs, "node-5, from the ", "explain finds the node of the bind")
	cancel()
	require.Error(t, <-waiting, "the client should have canceled the call")

	_, errs, code = b.command("status", "--as=user-without-permissions")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "cannot list resource \"leases\"")
}
