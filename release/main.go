// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command release builds the files of a release from binaries, manifests and a chart, and publishes them. Run it with make:
//
//	make release VERSION=v1.2.3
//	make publish VERSION=v1.2.3
//
// Equal inputs give equal bytes: all times are SOURCE_DATE_EPOCH, or the time of the commit.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
)

const usage = `usage: release check|assemble|publish --version=v1.2.3

  check     check the version, the changelog, and that the working tree is clean
  assemble  write the files of a release from the directory --stage to the directory --out
  publish   push the image and the chart of the directory --out. If --registry is the default, create the release on GitHub`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// run executes a command line in the root of the checkout.
func run(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	text := flags.String("version", "", "version of the release, such as v1.2.3")
	stage := flags.String("stage", "bin/stage", "directory with the results of the compiler, kustomize and Helm")
	out := flags.String("out", "bin/release", "directory of the release")
	registry := flags.String("registry", registryOfReleases, "prefix of the repositories to push to")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	v, err := parseVersion(*text)
	if err != nil {
		return err
	}
	switch args[0] {
	case "check":
		_, err = check(ctx, ".", v)
		return err
	case "assemble":
		s, err := check(ctx, ".", v)
		if err != nil {
			return err
		}
		return assemble(s, *stage, *out)
	case "publish":
		return publish(ctx, v, publication{root: ".", dir: *out, registry: *registry, github: *registry == registryOfReleases, out: stdout})
	default:
		return errors.New(usage)
	}
}
