// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
)

const (
	namespace = "demo"
	// delay is the provisioning time of a volume.
	delay = 7 * time.Second
	nodes = 12
	pods  = 6
)

type demo struct {
	out     io.Writer
	keep    bool
	command string
	cluster *cluster.Cluster
	client  kubernetes.Interface
	prebind *install.Prebind
}

func (d *demo) run(ctx context.Context) (err error) {
	if err := d.setUp(ctx); err != nil {
		return errors.Join(err, d.tearDown())
	}
	defer func() { err = errors.Join(err, d.tearDown()) }()

	if d.command != "" {
		return d.runCommand(ctx)
	}
	d.title("With Prebind")
	d.printf("A StatefulSet of %d pods, each with a claim of the class %q, which is provisioned in %s.", pods, className, delay)
	d.printf("kube-scheduler chooses nodes and posts Bindings. Its profile %s leaves volumes to Prebind;", cluster.NoPreBindScheduler)
	d.printf("the default kube-scheduler binds volumes itself.")
	d.printf("kwok acts as the kubelet: it starts pods that are bound.\n")
	if err := d.show(ctx, statefulSet("with", pods), runs); err != nil {
		return err
	}

	d.title("Without Prebind")
	d.printf("The same StatefulSet again, with Prebind unregistered (kubectl delete mutatingwebhookconfiguration prebind).\n")
	if err := d.prebind.Unregister(ctx); err != nil {
		return err
	}
	// kwok ignores volumes. A kubelet would not start these pods.
	if err := d.show(ctx, statefulSet("without", pods, gen.Annotation(cluster.StartDelay, "24h")), isBound); err != nil {
		return err
	}
	d.printf("The pods have no topology annotations and were bound without their volumes. Without")
	d.printf("selected-node no provisioner creates the volumes, and the pods never start.\n")

	if !d.keep {
		return nil
	}
	if err := d.prebind.Register(ctx); err != nil {
		return err
	}
	d.title("Left running")
	d.printf("Prebind is registered again. In another terminal:\n")
	d.printf("  export KUBECONFIG=%s PATH=%s:$PATH", d.cluster.Kubeconfig(), d.programs(ctx))
	d.printf("  kubectl prebind status")
	d.printf("  kubectl -n %s get pods -o wide", namespace)
	d.printf("  kubectl apply -f policy.yaml          (BindPolicies and tasks: docs/policies.md, docs/tasks.md)")
	d.printf("\nPrebind's logs: %s", d.prebind.LogDir())
	d.printf("Press Ctrl-C to stop everything.")
	<-ctx.Done()
	return nil
}

// runCommand runs the command of the user.
func (d *demo) runCommand(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "bash", "-c", d.command)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+d.cluster.Kubeconfig(), "PATH="+d.programs(ctx)+":"+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = d.out, os.Stderr
	return cmd.Run()
}

// programs returns the part of PATH with kubectl and its plugin.
func (d *demo) programs(ctx context.Context) string {
	return filepath.Dir(d.cluster.Kubectl(ctx).Path) + ":" + filepath.Dir(d.prebind.Client())
}

func (d *demo) setUp(ctx context.Context) error {
	d.title("A real control plane")
	var err error
	if d.cluster, err = cluster.Start(ctx, cluster.Options{Out: d.out, Kwok: true}); err != nil {
		return err
	}
	d.client = d.cluster.Client()
	if err := cluster.CreateNodes(ctx, d.client, cluster.Nodes("node", nodes)...); err != nil {
		return err
	}
	d.printf("%d nodes in 3 zones with 2 racks each", nodes)

	d.title("Prebind as installed from config/webhook")
	binary, err := install.Build(ctx, install.BuildOptions{Dir: d.cluster.Dir(), Client: true})
	if err != nil {
		return err
	}
	if d.prebind, err = install.New(ctx, install.Options{Cluster: d.cluster, Binary: binary}); err != nil {
		return err
	}
	if err := d.prebind.AddComponents(ctx, "plugins/policy"); err != nil {
		return err
	}
	const labels = "--topology-labels=topology.kubernetes.io/zone,kubernetes.io/hostname," + cluster.RackLabel
	for range 2 {
		if _, err := d.prebind.Start(ctx, labels); err != nil {
			return err
		}
	}
	d.printf("2 replicas are ready: prebind serve %s", labels)
	return d.makeObjects(ctx)
}

func (d *demo) tearDown() error {
	var replicas, controlPlane error
	if d.prebind != nil {
		replicas = d.prebind.Stop()
	}
	if d.cluster != nil {
		controlPlane = d.cluster.Stop()
	}
	return errors.Join(replicas, controlPlane)
}

func (d *demo) title(text string) { fmt.Fprintf(d.out, "\n== %s\n", text) }

func (d *demo) printf(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }
