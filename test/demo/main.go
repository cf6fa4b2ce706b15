// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command demo runs Prebind on a real control plane until Ctrl-C.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

func main() {
	os.Exit(run())
}

func run() int {
	command := pflag.String("run", "", "Run this command of the shell with kubectl, kubectl prebind and the cluster, and stop.")
	pflag.Parse()
	log.SetLogger(logr.Discard()) // Otherwise, controller-runtime prints a stack trace after 30 s.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	d := &demo{out: os.Stdout, command: *command}
	if err := d.run(ctx); err != nil {
		if ctx.Err() != nil {
			fmt.Fprintln(os.Stderr, "interrupted")
		} else {
			fmt.Fprintln(os.Stderr, "error:", err)
		}
		return 1
	}
	return 0
}
