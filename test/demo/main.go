// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command demo shows binds on a real control plane, with Prebind and without it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"
)

func main() {
	os.Exit(run())
}

func run() int {
	keep := pflag.Bool("keep", false, "Keep the control plane and Prebind running until Ctrl-C.")
	command := pflag.String("run", "", "Run this command of the shell in place of the demo, with kubectl, kubectl prebind and the cluster.")
	pflag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	d := &demo{out: os.Stdout, keep: *keep, command: *command}
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
