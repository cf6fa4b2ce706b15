// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package e2e shows Prebind at work on a real control plane: the shipped
// manifests, the real binary with the race detector, real tokens and RBAC.
package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
	// args are arguments of the replicas in addition to the shipped ones.
	args []string
}

func TestMain(m *testing.M) {
	waitTogether()
	os.Exit(clustertest.RunMain(m, cluster.Options{Out: os.Stderr, Audit: true}, func(c *cluster.Cluster) error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		fmt.Fprintln(os.Stderr, "building prebind with the race detector")
		binary, err := install.Build(ctx, install.BuildOptions{Dir: c.Dir(), Race: true})
		if err != nil {
			return err
		}
		shared, err = newWorld(ctx, c, binary, 2)
		return err
	}))
}

// waitTogether lets more tests run at a time than there are processors, unless
// -parallel says how many: nearly all of their time they wait.
func waitTogether() {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", "64")
	}
}

// newWorld adds nodes to a control plane, installs Prebind and starts the replicas, with these arguments in addition to the shipped ones.
func newWorld(ctx context.Context, c *cluster.Cluster, binary string, replicas int, args ...string) (*world, error) {
	return newWorldWith(ctx, install.Options{Cluster: c, Binary: binary}, replicas, args...)
}

// newWorldWith is newWorld with another installation than the shipped default.
func newWorldWith(ctx context.Context, o install.Options, replicas int, args ...string) (*world, error) {
	c := o.Cluster
	client, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		return nil, err
	}
	// The rack is copied as well.
	args = append([]string{"--topology-labels=topology.kubernetes.io/zone,topology.kubernetes.io/region,kubernetes.io/hostname," + cluster.RackLabel}, args...)
	w := &world{cluster: c, client: client, args: args}
	if err := cluster.CreateNodes(ctx, client, cluster.Nodes("node", 6)...); err != nil {
		return nil, err
	}
	if w.prebind, err = install.New(ctx, o); err != nil {
		return nil, err
	}
	for range replicas {
		if _, err := w.start(ctx); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// start starts one more replica.
func (w *world) start(ctx context.Context) (*install.Replica, error) {
	return w.prebind.Start(ctx, w.args...)
}

// ownWorld is a control plane and an installation for one test, which may disturb
// both.
func ownWorld(t *testing.T, replicas int, args ...string) *world {
	t.Helper()
	return ownWorldWith(t, install.Options{}, replicas, args...)
}

// ownClusters are the control planes in addition to the shared one: each needs half a gigabyte and, during its start, a processor.
var ownClusters = make(chan struct{}, 4)

// ownCluster is a control plane for one test. It waits until there is room for it.
func ownCluster(t *testing.T, o cluster.Options) *cluster.Cluster {
	t.Helper()
	select {
	case ownClusters <- struct{}{}:
	case <-t.Context().Done():
		t.Fatal("there was no room for another control plane")
	}
	// Clean-ups run in reverse: the control plane has ended by then.
	t.Cleanup(func() { <-ownClusters })
	return clustertest.Start(t, o)
}

// ownWorldWith is ownWorld with another installation than the shipped default. The
// options' cluster and binary are set here.
func ownWorldWith(t *testing.T, o install.Options, replicas int, args ...string) *world {
	t.Helper()
	o.Cluster, o.Binary = ownCluster(t, cluster.Options{Audit: true}), shared.prebind.Binary()
	w, err := newWorldWith(t.Context(), o, replicas, args...)
	require.NoError(t, err)
	w.killAfter(t)
	return w
}

// killAfter ends the replicas after the test, and shows their logs if it failed.
func (w *world) killAfter(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		for _, r := range w.prebind.Replicas() {
			assert.NoError(t, r.Err())
			assert.NoError(t, r.Kill())
			if t.Failed() {
				t.Logf("the end of the log of %s:\n%s", r.Name(), r.Tail(100))
			}
		}
	})
}
