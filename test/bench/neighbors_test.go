// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/prebind/prebind/test/cluster"
)

// Variants of other products. Their policies are in testdata.
const (
	admissionPolicy = "admission-policy" // a MutatingAdmissionPolicy in the API server that adds one annotation
	// Kyverno with a MutatingPolicy that reads the node from a GlobalContextEntry, without reports and client limit.
	kyverno = "kyverno"
	// Kyverno as shipped with a ClusterPolicy that reads the node from the API server.
	kyvernoLive = "kyverno-live"
)

// copiedZone is the annotation of both policies of Kyverno.
const copiedZone = "bench.prebind.dev/zone"

// BenchmarkNeighbors measures the same as BenchmarkBinds with products that can change a Binding as well. Kyverno copies the zone of
// the node, as Prebind does.
func BenchmarkNeighbors(b *testing.B) {
	benchmarkBinds(b, "neighbors", size{warmUp: 200, alone: 600, together: 600, clients: 16}, none, constant, prebind, admissionPolicy, kyverno, kyvernoLive)
}

// apply applies a file of testdata. It repeats that until the API server serves the kinds.
func (r *rivals) apply(ctx context.Context, file string) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		last = r.cluster.RunKubectl(ctx, "", "apply", "--server-side", "--force-conflicts", "-f", filepath.Join("testdata", file))
		return last == nil, nil
	})
	return errors.Join(err, last)
}

// addKyverno installs Kyverno's manifests and both policies, and prepares the processes of its admission controller with the
// shipped arguments. They run once here, because they issue the certificate and register the webhooks.
func (r *rivals) addKyverno(ctx context.Context) error {
	binary, err := inKyverno(ctx, "tool", "-n", "kyverno")
	if err != nil {
		return err
	}
	dir, err := inKyverno(ctx, "list", "-m", "-f", "{{.Dir}}", "github.com/kyverno/kyverno")
	if err != nil {
		return err
	}
	if err := r.cluster.RunKubectl(ctx, "", "apply", "--server-side", "--force-conflicts", "-f", filepath.Join(dir, "config", "install-latest-testing.yaml")); err != nil {
		return err
	}
	if err := r.apply(ctx, "kyverno.yaml"); err != nil {
		return err
	}
	const namespace, account = "kyverno", "kyverno-admission-controller"
	kubeconfig, err := r.cluster.ServiceAccountKubeconfig(ctx, namespace, account)
	if err != nil {
		return err
	}
	var addresses, ports [2]string
	for i := range addresses {
		if addresses[i], err = r.cluster.ReserveAddress(ctx); err != nil {
			return err
		}
		if _, ports[i], err = net.SplitHostPort(addresses[i]); err != nil {
			return err
		}
	}
	shipped, err := r.client.AppsV1().Deployments(namespace).Get(ctx, account, metav1.GetOptions{})
	if err != nil {
		return err
	}
	container := shipped.Spec.Template.Spec.Containers[0]
	// The last of two equal flags or variables applies.
	args := slices.Concat(container.Args, []string{
		"--kubeconfig=" + kubeconfig, "--webhookServerHost=127.0.0.1", "--webhookServerPort=" + ports[0],
		"--metricsHost=127.0.0.1", "--metricsPort=" + ports[1], "--controllerRuntimeMetricsAddress=0",
	})
	env := make([]string, 0, len(container.Env)+2)
	for _, e := range container.Env {
		env = append(env, e.Name+"="+e.Value)
	}
	env = append(env, "KYVERNO_NAMESPACE="+namespace, "KYVERNO_POD_NAME="+kyverno)
	r.cluster.Services().Route(namespace, "kyverno-svc", 443, cluster.Backend{Address: addresses[0]})
	tuned := []string{"--admissionReports=false", "--clientRateLimitQPS=5000", "--clientRateLimitBurst=10000"}
	for _, variant := range []string{kyvernoLive, kyverno} {
		if variant == kyverno {
			args = append(args, tuned...)
		}
		r.processes[variant] = cluster.NewProcess(cluster.ProcessOptions{
			Name: variant, Path: binary, LogFile: filepath.Join(r.cluster.Dir(), "logs", variant+".log"),
			Args: args, Env: env,
			Health: func(ctx context.Context) error { return r.try(ctx, variant) },
		})
		if err := r.turn(ctx, variant, func(context.Context) error { return nil }); err != nil {
			return err
		}
	}
	return nil
}

// inKyverno runs the go command in the module of Kyverno, and returns its output. The first build of Kyverno takes some minutes.
func inKyverno(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = filepath.Join("..", "kyverno")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s in test/kyverno: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// try binds a pod, and checks its annotations.
func (r *rivals) try(ctx context.Context, variant string) error {
	pods, err := r.create(ctx, variant, "try", 1)
	if err == nil {
		_, err = r.bindAll(ctx, 1, pods)
	}
	if err == nil {
		err = r.check(ctx, variant, pods[0].Name)
	}
	return errors.Join(err, r.clear(context.WithoutCancel(ctx), variant))
}
