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

	"k8s.io/client-go/kubernetes"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/install"
)

const nodes = 12

type demo struct {
	out     io.Writer
	command string
	cluster *cluster.Cluster
	prebind *install.Prebind
}

func (d *demo) run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, d.tearDown()) }()
	if err := d.setUp(ctx); err != nil {
		return err
	}
	programs := filepath.Dir(d.cluster.Kubectl(ctx).Path) + ":" + filepath.Dir(d.prebind.Client())
	if d.command != "" {
		cmd := exec.CommandContext(ctx, "bash", "-c", d.command)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+d.cluster.Kubeconfig(), "PATH="+programs+":"+os.Getenv("PATH"))
		cmd.Stdout, cmd.Stderr = d.out, os.Stderr
		return cmd.Run()
	}
	d.printf("\nIn another terminal:\n")
	d.printf("  export KUBECONFIG=%s PATH=%s:$PATH", d.cluster.Kubeconfig(), programs)
	d.printf("  kubectl create -f test/recording/train-0.yaml -f test/recording/train-1.yaml")
	d.printf("  kubectl prebind explain train-1")
	d.printf("  kubectl apply -f policy.yaml          (BindPolicies and tasks: docs/policies.md, docs/tasks.md)")
	d.printf("\nPrebind's logs: %s", d.prebind.LogDir())
	d.printf("Press Ctrl-C to stop everything.")
	<-ctx.Done()
	return nil
}

func (d *demo) setUp(ctx context.Context) error {
	var err error
	if d.cluster, err = cluster.Start(ctx, cluster.Options{Out: d.out, Kwok: true}); err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(d.cluster.Config())
	if err != nil {
		return err
	}
	if err := cluster.CreateNodes(ctx, client, cluster.Nodes("node", nodes)...); err != nil {
		return err
	}
	d.printf("%d nodes in 3 zones with 2 racks each. kwok acts as the kubelet: it starts pods that are bound", nodes)
	binary, err := install.Build(ctx, install.BuildOptions{Dir: d.cluster.Dir()})
	if err != nil {
		return err
	}
	if err := install.BuildClient(ctx, binary); err != nil {
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
	return nil
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

func (d *demo) printf(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }
