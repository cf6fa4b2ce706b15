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
	"strings"
	"sync"
	"time"
)

// cachedBuild returns the folder with the binary called name, built from the
// source's package pkg. The directory is complete or does not exist, and no process removes it while this process lives.
func cachedBuild(ctx context.Context, progress io.Writer, s source, pkg, name string) (string, error) {
	m, err := findModule(ctx, s)
	if err != nil {
		return "", err
	}
	root, err := CacheDir()
	if err != nil {
		return "", err
	}
	c := buildCache{dir: filepath.Join(root, s.cacheFolder())}
	entry := m.hash
	if pkg != "." {
		entry += "-" + name
	}
	if err := c.hold(ctx, entry); err != nil {
		return "", err
	}
	if c.has(entry) {
		return c.path(entry), nil
	}
	build, err := c.waitLock(ctx, "build", func() {
		say(progress, "another process is building %s: waiting for it", title(name))
	})
	if err != nil {
		return "", err
	}
	defer build.release()
	if c.has(entry) { // the other process built the very same
		return c.path(entry), nil
	}
	if err := c.fill(ctx, progress, m, entry, pkg, name); err != nil {
		return "", err
	}
	c.prune(m.hash)
	return c.path(entry), nil
}

// buildCache is a folder of builds, one folder each, named after what went into it.
type buildCache struct{ dir string }

func (c buildCache) path(entry string) string { return filepath.Join(c.dir, entry) }

func (c buildCache) has(entry string) bool {
	_, err := os.Stat(c.path(entry))
	return err == nil
}

// fill builds into a folder of another name and renames that, so that no one
// ever sees half a build.
func (c buildCache) fill(ctx context.Context, progress io.Writer, m module, entry, pkg, name string) error {
	unfinished := filepath.Join(c.dir, ".unfinished")
	if err := os.RemoveAll(unfinished); err != nil {
		return fmt.Errorf("remove an unfinished build: %w", err)
	}
	if err := os.MkdirAll(unfinished, 0o755); err != nil {
		return fmt.Errorf("make the cache folder: %w", err)
	}
	if err := m.build(ctx, progress, pkg, title(name), executable(unfinished, name)); err != nil {
		return errors.Join(err, os.RemoveAll(unfinished))
	}
	for _, component := range contents[name] {
		if err := link(executable(unfinished, name), executable(unfinished, component)); err != nil {
			return err
		}
	}
	if err := os.Rename(unfinished, c.path(entry)); err != nil {
		return fmt.Errorf("put the build in its place: %w", err)
	}
	return nil
}

// title is what people call the binary.
func title(name string) string {
	switch name {
	case multiplexer:
		return "the control plane"
	case versioned:
		return "Kubernetes"
	case Kwok, CertManager:
		return name
	case csiDriver:
		return "the CSI driver"
	case csiProvisioner:
		return "external-provisioner"
	default:
		return "the test provisioner"
	}
}

// link gives the file a second name in the same folder.
func link(target, name string) error {
	if os.Symlink(filepath.Base(target), name) == nil {
		return nil
	}
	// Windows grants symbolic links to administrators only.
	if err := os.Link(target, name); err != nil {
		return fmt.Errorf("link %s to %s: %w", name, target, err)
	}
	return nil
}

// prune removes the builds of other sources than hash stands for, unless somebody
// holds them. It is a courtesy to the disk, so what cannot be removed is left for
// the next time.
func (c buildCache) prune(hash string) {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return
	}
	for _, entry := range entries {
		if !entry.IsDir() || entry.Name() == locksDir || strings.HasPrefix(entry.Name(), hash) {
			continue
		}
		lock, err := tryLock(c.lockPath(entry.Name()), false)
		if err != nil {
			continue // a process uses it
		}
		_ = os.RemoveAll(c.path(entry.Name()))
		lock.release()
	}
}

const locksDir = "locks"

func (c buildCache) lockPath(name string) string {
	return filepath.Join(c.dir, locksDir, name)
}

// held are the shared locks of this process on the builds that it uses. They are
// kept on purpose until it ends: a component may be restarted at any time.
var held = struct {
	sync.Mutex
	locks map[string]*fileLock
}{locks: map[string]*fileLock{}}

// hold keeps the entry, which need not exist yet, from being pruned.
func (c buildCache) hold(ctx context.Context, entry string) error {
	held.Lock()
	defer held.Unlock()
	path := c.lockPath(entry)
	if held.locks[path] != nil {
		return nil
	}
	lock, err := c.poll(ctx, path, true, func() {})
	if err != nil {
		return err
	}
	held.locks[path] = lock
	return nil
}

// waitLock takes an exclusive lock, and calls waiting once if that takes time.
func (c buildCache) waitLock(ctx context.Context, name string, waiting func()) (*fileLock, error) {
	return c.poll(ctx, c.lockPath(name), false, waiting)
}

// poll asks for the lock again and again: unlike a blocking call, that can be
// given up when ctx ends.
func (c buildCache) poll(ctx context.Context, path string, shared bool, waiting func()) (*fileLock, error) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		lock, err := tryLock(path, shared)
		if !errors.Is(err, errLocked) {
			return lock, err
		}
		waiting()
		waiting = func() {}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the lock %s: %w", path, ctx.Err())
		case <-tick.C:
		}
	}
}
