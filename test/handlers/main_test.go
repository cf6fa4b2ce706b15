// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package handlers tests the handlers in docs/example/handlers on a real control plane, as processes with the permissions of their
// manifests. The tests create and delete BindTasks as Prebind does, and set the status of pods as the kubelet does.
package handlers

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/policy/v1alpha1"
	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/cluster/clustertest"
)

const (
	patience = 30 * time.Second
	again    = 50 * time.Millisecond
	// namespace is that of the handlers.
	namespace = "bind-handlers"
	nodeName  = "node-1"
)

var (
	shared   *cluster.Cluster
	tasks    client.WithWatch
	examples = filepath.Join("..", "..", "docs", "example", "handlers")
)

func TestMain(m *testing.M) {
	o := cluster.Options{WithoutScheduler: true, WithoutProvisioner: true}
	os.Exit(clustertest.RunMain(m, o, func(c *cluster.Cluster) error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		shared = c
		return prepare(ctx, c)
	}))
}

// prepare installs the CRDs, the permissions of handlers, and the manifests of the handlers, and builds their programs.
func prepare(ctx context.Context, c *cluster.Cluster) error {
	plugin := filepath.Join("..", "..", "config", "webhook", "plugins", "policy")
	apply := []string{"apply"}
	for _, file := range []string{"crd.yaml", "tasks-crd.yaml", "tasks-handlers.yaml"} {
		apply = append(apply, "-f", filepath.Join(plugin, file))
	}
	commands := []*exec.Cmd{
		exec.CommandContext(ctx, "go", "build", "-C", examples, "-o", c.Dir(), "./prefetch", "./tokens"),
		c.Kubectl(ctx, apply...),
		c.Kubectl(ctx, "wait", "--for=condition=Established", "crd/bindpolicies.policy.prebind.dev", "crd/bindtasks.policy.prebind.dev"),
		c.Kubectl(ctx, "apply", "-f", filepath.Join(examples, "prefetch"), "-f", filepath.Join(examples, "tokens")),
		c.Kubectl(ctx, "apply", "-k", filepath.Join(examples, "python")),
	}
	for _, command := range commands {
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", command, err, out)
		}
	}
	scheme := clientgoscheme.Scheme
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return err
	}
	var err error
	if tasks, err = client.NewWithWatch(c.Config(), client.Options{Scheme: scheme}); err != nil {
		return err
	}
	return cluster.CreateNodes(ctx, c.Client(), cluster.Nodes("node", 1)...)
}

// start starts the handler with the token of its ServiceAccount.
func start(t *testing.T, name, path string, command func(kubeconfig string) (args, env []string)) *cluster.Process {
	t.Helper()
	kubeconfig, err := shared.ServiceAccountKubeconfig(t.Context(), namespace, name)
	require.NoError(t, err)
	args, env := command(kubeconfig)
	process := cluster.NewProcess(cluster.ProcessOptions{
		Name: name, Path: path, Args: args, Env: env, LogFile: filepath.Join(shared.Dir(), "logs", name+".log"),
	})
	require.NoError(t, process.Start())
	t.Cleanup(func() { clustertest.Kill(t, process) })
	return process
}

// startProgram starts a handler in Go.
func startProgram(t *testing.T, name string, args ...string) *cluster.Process {
	t.Helper()
	return start(t, name, filepath.Join(shared.Dir(), name), func(kubeconfig string) ([]string, []string) {
		return append(args, "--kubeconfig="+kubeconfig), nil
	})
}

// create creates a BindTask.
func create(t *testing.T, name, handler string, parameters map[string]v1alpha1.ParameterValue) {
	t.Helper()
	require.NoError(t, tasks.Create(t.Context(), &v1alpha1.BindTask{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.BindTaskSpec{
			Policy: "test", Task: "test", Handler: "example.com/" + handler, NodeName: nodeName, Parameters: parameters,
			Pod:    v1alpha1.PodReference{Namespace: "shop", Name: name, UID: types.UID("uid-of-" + name)},
			Retain: v1alpha1.RetainWhilePodRuns, Attempts: []string{"1"},
		},
	}))
}

// until waits until the BindTask fulfills the condition, and returns it.
func until(t *testing.T, name string, condition func(*v1alpha1.BindTask) bool) *v1alpha1.BindTask {
	t.Helper()
	task := &v1alpha1.BindTask{}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		require.NoError(c, tasks.Get(t.Context(), client.ObjectKey{Name: name}, task))
		assert.True(c, condition(task), "%v", task.Status)
	}, patience, again)
	return task
}

func is(conditionType string) func(*v1alpha1.BindTask) bool {
	return func(task *v1alpha1.BindTask) bool { return task.IsTrue(conditionType) }
}

// remove deletes the BindTask, and waits until the handler has undone its work.
func remove(t *testing.T, name string) {
	t.Helper()
	task := &v1alpha1.BindTask{ObjectMeta: metav1.ObjectMeta{Name: name}}
	require.NoError(t, tasks.Delete(t.Context(), task))
	untilGone(t, task, name)
}

func untilGone(t *testing.T, object client.Object, name string) {
	t.Helper()
	key := client.ObjectKey{Namespace: object.GetNamespace(), Name: name}
	require.Eventually(t, func() bool { return apierrors.IsNotFound(tasks.Get(t.Context(), key, object)) }, patience, again)
}
