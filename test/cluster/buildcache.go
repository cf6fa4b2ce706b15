// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// cachedBuild returns the folder with the binary called name, built from the
// source's package pkg. The folder is complete, and stays at least for unusedFor.
func cachedBuild(ctx context.Context, progress io.Writer, s source, pkg, name string) (string, error) {
	m, err := findModule(ctx, s)
	if err != nil {
		return "", err
	}
	root, err := CacheDir()
	if err != nil {
		return "", err
	}
	entry := m.hash
	if pkg != "." {
		entry += "-" + name
	}
	all := filepath.Join(root, s.cacheFolder())
	dir := filepath.Join(all, entry)
	if used(dir) {
		return dir, nil
	}
	lock, err := waitLock(ctx, filepath.Join(all, ".locks", "build"), func() {
		say(progress, "another process is building %s: waiting for it", name)
	})
	if err != nil {
		return "", err
	}
	defer lock.release()
	if used(dir) { // the other process built the very same
		return dir, nil
	}
	prune(all)
	return dir, m.fill(ctx, progress, pkg, name, dir)
}

// used reports whether the build exists, and sets the time of its last use.
func used(dir string) bool {
	now := time.Now()
	return os.Chtimes(dir, now, now) == nil
}

// unusedFor is how long builds stay after their last use. It is longer than any process that uses one.
const unusedFor = 7 * 24 * time.Hour

// prune removes unused builds. A later build tries again to remove one that it cannot remove.
func prune(all string) {
	entries, err := filepath.Glob(filepath.Join(all, "[^.]*"))
	if err != nil {
		return
	}
	for _, dir := range entries {
		if info, err := os.Stat(dir); err == nil && time.Since(info.ModTime()) > unusedFor {
			_ = os.RemoveAll(dir)
		}
	}
}

// fill builds into a folder of another name and renames that, so that no one
// ever sees half a build.
func (m module) fill(ctx context.Context, progress io.Writer, pkg, name, dir string) error {
	unfinished := filepath.Join(filepath.Dir(dir), ".unfinished")
	if err := os.RemoveAll(unfinished); err != nil {
		return fmt.Errorf("remove an unfinished build: %w", err)
	}
	if err := os.MkdirAll(unfinished, 0o755); err != nil {
		return fmt.Errorf("make the cache folder: %w", err)
	}
	if err := m.build(ctx, progress, pkg, filepath.Join(unfinished, name)); err != nil {
		return errors.Join(err, os.RemoveAll(unfinished))
	}
	for _, component := range contents[name] {
		if err := os.Symlink(name, filepath.Join(unfinished, component)); err != nil {
			return fmt.Errorf("link %s to %s: %w", component, name, err)
		}
	}
	if err := os.Rename(unfinished, dir); err != nil {
		return fmt.Errorf("put the build in its place: %w", err)
	}
	return nil
}

// build compiles the nested module's package pkg into the file output.
func (m module) build(ctx context.Context, progress io.Writer, pkg, output string) error {
	start, name := time.Now(), filepath.Base(output)
	say(progress, "building %s (%s) from Go modules: this happens once and takes some minutes", name, m.version)
	cmd := m.goCommand(ctx, "build", "-modfile="+m.modFile(), "-trimpath", "-ldflags", m.ldflags(), "-o", output, pkg)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s in %s (go needs its module proxy for this, once): %w\n%s", name, m.dir, errors.Join(context.Cause(ctx), err), out)
	}
	say(progress, "built %s in %s", name, time.Since(start).Round(time.Second))
	return nil
}

// say writes a line for a human. Nothing depends on whether it can be written.
func say(w io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(w, format+"\n", args...)
}
