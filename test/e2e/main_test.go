// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package e2e shows Prebind at work on a real control plane: the shipped
// manifests, the real binary with the race detector, real tokens and RBAC.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/cluster/clustertest"
	"github.com/prebind/prebind/test/install"
)

// shared is the control plane and the installation that the tests of this
// package use. A test that stops Prebind does so in an installation of its own.
var shared *world

type world struct {
	cluster *cluster.Cluster
	prebind *install.Prebind
	client  kubernetes.Interface
}

func TestMain(m *testing.M) {
	os.Exit(clustertest.RunMain(m, cluster.Options{Out: os.Stderr, Audit: true}, func(c *cluster.Cluster) error {
		var err error
		shared, err = newWorld(context.Background(), c)
		return err
	}))
}

// newWorld fills a control plane with nodes and installs Prebind on it.
func newWorld(ctx context.Context, c *cluster.Cluster) (*world, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	client, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		return nil, err
	}
	w := &world{cluster: c, client: client}
	if err := cluster.CreateNodes(ctx, client, cluster.Nodes("node", 6)...); err != nil {
		return nil, err
	}
	fmt.Fprintln(os.Stderr, "building prebind with the race detector")
	binary, err := install.Build(ctx, install.BuildOptions{Dir: c.Dir(), Race: true})
	if err != nil {
		return nil, err
	}
	if w.prebind, err = install.New(ctx, install.Options{Cluster: c, Binary: binary}); err != nil {
		return nil, err
	}
	return w, w.start(ctx, 2)
}

// start starts replicas that copy the rack as well.
func (w *world) start(ctx context.Context, replicas int) error {
	var errs []error
	for range replicas {
		_, err := w.prebind.Start(ctx, "--topology-labels=topology.kubernetes.io/zone,topology.kubernetes.io/region,kubernetes.io/hostname,"+cluster.RackLabel)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
