// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package e2e tests Prebind on a real control plane, with the shipped manifests, the real binary with the race detector, and real
// tokens and RBAC.
package e2e

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"path"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/cluster/clustertest"
	"github.com/prebind/prebind/test/install"
)

// shared is the control plane and the installation of most tests in this package. A test that stops Prebind uses a separate
// installation.
var shared *world

type world struct {
	cluster *cluster.Cluster
	prebind *install.Prebind
	client  kubernetes.Interface
	// args contains arguments of the replicas in addition to the shipped ones.
	args []string
}

func TestMain(m *testing.M) {
	waitTogether()
	code := clustertest.RunMain(m, cluster.Options{Out: os.Stderr, Audit: true}, func(c *cluster.Cluster) error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		fmt.Fprintln(os.Stderr, "building prebind with the race detector")
		binary, err := install.Build(ctx, install.BuildOptions{Dir: c.Dir(), Race: true, Client: true})
		if err != nil {
			return err
		}
		shared, err = newWorld(ctx, install.Options{Cluster: c, Binary: binary}, 2)
		return err
	})
	os.Exit(code)
}

// processors is the number of processors for the tests, their control planes and their replicas.
var processors = runtime.GOMAXPROCS(0)

// waitTogether lets tests wait for a control plane of their own, or for their turn, without keeping others from running. -parallel
// overrides the number.
func waitTogether() {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(100*processors))
	}
}

// turns limits the tests that use the shared control plane at the same time. More than there are processors, because tests mostly
// wait. With many more, calls take seconds.
var turns = struct {
	free    chan struct{}
	holders sync.Map
}{free: make(chan struct{}, 4*processors)}

// takeTurn waits until the test may use the shared control plane. A subtest of a test that has its turn does not wait.
func takeTurn(t *testing.T) {
	t.Helper()
	for name := t.Name(); name != "."; name = path.Dir(name) {
		if _, holds := turns.holders.Load(name); holds {
			return
		}
	}
	take(t, turns.free)
	turns.holders.Store(t.Name(), true)
	t.Cleanup(func() {
		turns.holders.Delete(t.Name())
		<-turns.free
	})
}

// newWorld adds nodes to a control plane, installs Prebind and starts the replicas, with these arguments in addition to the shipped ones.
func newWorld(ctx context.Context, o install.Options, replicas int, args ...string) (*world, error) {
	c := o.Cluster
	// Copy the rack to a label of the pod.
	args = append([]string{"--topology-labels=topology.kubernetes.io/zone,topology.kubernetes.io/region,kubernetes.io/hostname," + cluster.RackLabel}, args...)
	w := &world{cluster: c, client: c.Client(), args: args}
	if err := cluster.CreateNodes(ctx, w.client, cluster.Nodes("node", 6)...); err != nil {
		return nil, err
	}
	var err error
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

// start starts another replica.
func (w *world) start(ctx context.Context) (*install.Replica, error) {
	return w.prebind.Start(ctx, w.args...)
}

var (
	// ownClusters limits the number of control planes in addition to the shared one. Each control plane needs 0.5 GB of memory. Most
	// of their tests mostly wait.
	ownClusters = make(chan struct{}, processors+1)
	// ownStarts limits the number of starts and installations of these control planes at the same time. Each of them needs a processor,
	// and the tests need the others.
	ownStarts = make(chan struct{}, max(processors/2, 1))
)

// ownCluster starts a control plane for one test. It waits for a free slot of ownClusters.
func ownCluster(t *testing.T, o cluster.Options) *cluster.Cluster {
	t.Helper()
	take(t, ownClusters)
	// Cleanups run in reverse order, so the control plane has stopped before this one.
	t.Cleanup(func() { <-ownClusters })
	take(t, ownStarts)
	defer func() { <-ownStarts }()
	return clustertest.Start(t, o)
}

// take waits for a free slot.
func take(t *testing.T, slots chan<- struct{}) {
	t.Helper()
	select {
	case slots <- struct{}{}:
	case <-t.Context().Done():
		t.Fatal("other tests did not end in time")
	}
}

// ownWorld returns a control plane and an installation for one test, which may disturb both. It sets Cluster and Binary of the options
// if they are empty.
func ownWorld(t *testing.T, o install.Options, replicas int, args ...string) *world {
	t.Helper()
	if o.Cluster == nil {
		o.Cluster = ownCluster(t, cluster.Options{Audit: true})
	}
	o.Binary = cmp.Or(o.Binary, shared.prebind.Binary())
	take(t, ownStarts)
	w, err := newWorld(t.Context(), o, replicas, args...)
	<-ownStarts
	require.NoError(t, err)
	w.killAfter(t)
	return w
}

// killAfter kills the replicas after the test, and shows their logs if the test failed.
func (w *world) killAfter(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		if m := w.prebind.CertManager(); m != nil {
			clustertest.Kill(t, m)
		}
		for _, r := range w.prebind.Replicas() {
			clustertest.Kill(t, r.Process)
		}
	})
}
