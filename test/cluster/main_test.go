// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"os"
	"testing"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/cluster/clustertest"
)

// shared is the control plane of the tests that do not stop parts of it.
var shared *cluster.Cluster

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		os.Exit(play(role))
	}
	os.Exit(clustertest.RunMain(m, cluster.Options{Audit: true}, func(c *cluster.Cluster) error {
		shared = c
		return nil
	}))
}
