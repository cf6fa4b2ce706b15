// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// clockFile is the environment variable with the path of the file that contains the offset of the clock.
const clockFile = "PREBIND_TEST_CLOCK"

// followClock is a source file that the build adds to package time.
//
//go:embed testdata/clock.go
var followClock []byte

// The change of time.Now. It follows the branch for a testing/synctest bubble, which has a separate clock. As with a step of
// the system clock, the monotonic reading does not change.
const (
	nowBefore = "\tmono -= startNano\n\tsec += unixToInternal - minWall\n"
	nowAfter  = "\tmono -= startNano\n\tsec, nsec = wrongWall(sec, nsec)\n\tsec += unixToInternal - minWall\n"
)

// clocked contains the parameters of a go build that makes the clock of a program configurable.
type clocked struct {
	// command is the go command. env contains its additional environment variables.
	command string
	env     []string
	// files contains the changed files of package time by path.
	files map[string][]byte
}

// buildClocked prepares the build. The clock applies to the whole process, including libraries, because the build changes
// package time.
func buildClocked(ctx context.Context, root string) (clocked, error) {
	cmd := exec.CommandContext(ctx, "go", "env", "GOROOT", "GOMODCACHE")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return clocked{}, fmt.Errorf("finding the standard library: %w", err)
	}
	goroot, cache, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	c := clocked{command: "go"}
	if strings.HasPrefix(goroot, cache+string(filepath.Separator)) {
		// The installed go command is older and has downloaded this toolchain.
		own, err := os.UserCacheDir()
		if err != nil {
			return clocked{}, fmt.Errorf("finding a directory for the standard library: %w", err)
		}
		if goroot, err = linked(goroot, filepath.Join(own, "prebind", "goroot")); err != nil {
			return clocked{}, err
		}
		c.command, c.env = filepath.Join(goroot, "bin", "go"), []string{"GOROOT=" + goroot, "GOTOOLCHAIN=local"}
	}
	c.files, err = clockFiles(goroot)
	return c, err
}

// linked returns a directory below dir with links to all files of a Go installation in the module cache. go build does not
// allow an overlay of files in the module cache.
func linked(goroot, dir string) (string, error) {
	other := filepath.Join(dir, filepath.Base(goroot))
	entries, err := os.ReadDir(goroot)
	if err == nil {
		err = os.MkdirAll(other, 0o755)
	}
	for _, e := range entries {
		// Another process may create the same links.
		if failed := os.Symlink(filepath.Join(goroot, e.Name()), filepath.Join(other, e.Name())); failed != nil && !errors.Is(failed, fs.ErrExist) {
			err = errors.Join(err, failed)
		}
	}
	if err != nil {
		return "", fmt.Errorf("linking the Go installation %s: %w", goroot, err)
	}
	return other, nil
}

// clockFiles returns the changed files of package time by path.
func clockFiles(goroot string) (map[string][]byte, error) {
	pkg := filepath.Join(goroot, "src", "time")
	name := filepath.Join(pkg, "time.go")
	source, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("reading package time: %w", err)
	}
	changed, err := changeNow(string(source))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return map[string][]byte{name: []byte(changed), filepath.Join(pkg, "prebind_clock.go"): followClock}, nil
}

// changeNow returns the source with a time.Now that calls wrongWall.
func changeNow(source string) (string, error) {
	if n := strings.Count(source, nowBefore); n != 1 {
		return "", fmt.Errorf("lines of time.Now found %d times, want 1: update nowBefore and nowAfter in test/install/clock.go for this version of Go:\n%s", n, nowBefore)
	}
	return strings.Replace(source, nowBefore, nowAfter, 1), nil
}

// SetClock sets the offset of the wall clock of the replica. 0 resets the clock. The offset applies within 100 ms, or from the
// start of a replica that does not run. Timers do not change.
func (r *Replica) SetClock(wrong time.Duration) error {
	if r.clock == "" {
		return fmt.Errorf("cannot set the clock of %s: set Clock in Options and in BuildOptions", r.Name())
	}
	next := r.clock + ".next"
	if err := os.WriteFile(next, []byte(strconv.FormatInt(int64(wrong), 10)), 0o600); err != nil {
		return fmt.Errorf("setting the clock of %s: %w", r.Name(), err)
	}
	if err := os.Rename(next, r.clock); err != nil {
		return fmt.Errorf("setting the clock of %s: %w", r.Name(), err)
	}
	return nil
}
