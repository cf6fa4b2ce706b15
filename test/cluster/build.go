// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// progressEvery is the pause between two lines about a build in progress.
const progressEvery = 5 * time.Second

// build compiles the nested module's package pkg, which people call title, into the
// file output, and says from time to time how far it has come.
func (m module) build(ctx context.Context, progress io.Writer, pkg, title, output string) error {
	start := time.Now()
	say(progress, "building %s (%s) from Go modules: this happens once and takes some minutes", title, m.version)
	packages, err := m.packages(ctx, progress, pkg)
	if err != nil {
		return err
	}
	counter := newGoOutput(packages)
	stop := report(ctx, progress, func() string {
		compiled, _ := counter.counts()
		return fmt.Sprintf("building %s (first time only): %d of %d packages, %s",
			title, compiled, len(packages), time.Since(start).Round(time.Second))
	})
	defer stop()
	cmd := m.goCommand(ctx, "build", "-modfile="+m.modFile(), "-v", "-trimpath", "-ldflags", m.ldflags(), "-o", output, pkg)
	cmd.Stdout, cmd.Stderr = counter, counter
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build %s in %s: %w\n%s", title, m.dir, ended(ctx, err), counter.rest())
	}
	stop()
	say(progress, "built %s in %s", title, time.Since(start).Round(time.Second))
	return nil
}

// packages lists what pkg is made of, which downloads all of it first.
func (m module) packages(ctx context.Context, progress io.Writer, pkg string) ([]string, error) {
	counter := newGoOutput(nil)
	stop := report(ctx, progress, func() string {
		_, downloads := counter.counts()
		return fmt.Sprintf("downloading Go modules (first time only): %d so far", downloads)
	})
	defer stop()
	var list bytes.Buffer
	cmd := m.goCommand(ctx, "list", "-modfile="+m.modFile(), "-deps", pkg)
	cmd.Stdout, cmd.Stderr = &list, counter
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("list what to build in %s (go needs its module proxy for this, once): %w\n%s",
			m.dir, ended(ctx, err), counter.rest())
	}
	return strings.Fields(list.String()), nil
}

// ended prefers the context's error: that a command was interrupted is its effect.
func ended(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// report writes line() at intervals until ctx ends or stop is called, which may be
// done more than once; nothing is written after it returns.
func report(ctx context.Context, w io.Writer, line func() string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				say(w, "%s", line())
			}
		}
	}()
	return func() { cancel(); <-done }
}

// goOutput reads what the go command says: it counts packages and downloads, and
// keeps everything else, which are the errors.
type goOutput struct {
	packages map[string]bool

	mu                  sync.Mutex
	partial             []byte
	compiled, downloads int
	other               bytes.Buffer
}

func newGoOutput(packages []string) *goOutput {
	o := &goOutput{packages: make(map[string]bool, len(packages))}
	for _, p := range packages {
		o.packages[p] = true
	}
	return o
}

func (o *goOutput) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.partial = append(o.partial, p...)
	for {
		line, rest, found := bytes.Cut(o.partial, []byte("\n"))
		if !found {
			return len(p), nil
		}
		o.add(string(line))
		o.partial = rest
	}
}

func (o *goOutput) add(line string) {
	switch {
	case o.packages[line]:
		o.compiled++
	case strings.HasPrefix(line, "go: downloading "):
		o.downloads++
	default:
		o.other.WriteString(line + "\n")
	}
}

func (o *goOutput) counts() (compiled, downloads int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.compiled, o.downloads
}

func (o *goOutput) rest() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.other.String() + string(o.partial)
}
