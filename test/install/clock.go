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

// clockFile is the variable that names the file with the offset of the clock.
const clockFile = "PREBIND_TEST_CLOCK"

// followClock is added to package time.
//
//go:embed testdata/clock.go
var followClock []byte

// In time.Now, behind the way of a testing/synctest bubble, whose clock is its own.
// The monotonic reading stays as it is, as with a step of the system's clock.
const (
	nowBefore = "\tmono -= startNano\n\tsec += unixToInternal - minWall\n"
	nowAfter  = "\tmono -= startNano\n\tsec, nsec = wrongWall(sec, nsec)\n\tsec += unixToInternal - minWall\n"
)

// clocked is how go build gives a program a clock that can be set.
type clocked struct {
	// command is the go command, and env what it needs in addition to the environment.
	command string
	env     []string
	// files are those of package time that differ, by path.
	files map[string][]byte
}

// buildClocked prepares the build. The whole process has that clock, including its
// libraries, because package time itself differs.
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
		// The go command that is installed is older, and has fetched this one.
		own, err := os.UserCacheDir()
		if err != nil {
			return clocked{}, fmt.Errorf("finding a folder for the standard library: %w", err)
		}
		if goroot, err = linked(goroot, filepath.Join(own, "prebind", "goroot")); err != nil {
			return clocked{}, err
		}
		c.command, c.env = filepath.Join(goroot, "bin", "go"), []string{"GOROOT=" + goroot, "GOTOOLCHAIN=local"}
	}
	c.files, err = clockFiles(goroot)
	return c, err
}

// linked returns another path for a Go that is in the module cache, where go build
// allows no overlay: a folder below dir that has links to all in it.
func linked(goroot, dir string) (string, error) {
	other := filepath.Join(dir, filepath.Base(goroot))
	entries, err := os.ReadDir(goroot)
	if err == nil {
		err = os.MkdirAll(other, 0o755)
	}
	for _, e := range entries {
		// Another run may be about the same.
		if failed := os.Symlink(filepath.Join(goroot, e.Name()), filepath.Join(other, e.Name())); failed != nil && !errors.Is(failed, fs.ErrExist) {
			err = errors.Join(err, failed)
		}
	}
	if err != nil {
		return "", fmt.Errorf("linking %s, whose standard library is to be changed: %w", goroot, err)
	}
	return other, nil
}

// clockFiles returns the files of package time that differ, by path.
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

// changeNow makes time.Now return another time.
func changeNow(source string) (string, error) {
	if n := strings.Count(source, nowBefore); n != 1 {
		return "", fmt.Errorf("these lines of time.Now are there %d times, and should be there once: this version of Go has another one; bring nowBefore and nowAfter in test/install/clock.go up to it:\n%s", n, nowBefore)
	}
	return strings.Replace(source, nowBefore, nowAfter, 1), nil
}

// SetClock makes the wall clock of the replica wrong by so much, or right again by 0,
// within 100 ms; a replica that does not run starts with it. Timers do not change.
func (r *Replica) SetClock(wrong time.Duration) error {
	if r.clock == "" {
		return fmt.Errorf("the clock of %s cannot be set: say so in the Options of its installation, and in the BuildOptions of its program", r.Name())
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
