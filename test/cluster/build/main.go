// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command build builds the control plane unless it is cached, of the version in PREBIND_TEST_KUBERNETES, and shows the progress, which go test would hide.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/prebind/prebind/test/cluster"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return cluster.Build(ctx, os.Stdout)
}
