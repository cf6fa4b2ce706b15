// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
)

// source is a nested Go module of this repository that binaries are built from.
type source struct {
	folder   string   // in test
	mod      string   // file with the requirements if not go.mod: VERSION.mod, one build for each
	requires string   // the module whose version its binaries have
	stamped  []string // packages that report the version
}

var (
	controlPlaneSource = source{
		folder: "controlplane", requires: "k8s.io/kubernetes",
		stamped: []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"},
	}
	kwokSource = source{folder: "kwok", requires: "sigs.k8s.io/kwok"}
)

// module is a source on disk.
type module struct {
	source
	dir     string // absolute
	version string // of what it requires, such as v1.36.3
	hash    string // changes with whatever can change the binaries
}

// findModule locates the source and fingerprints it.
func findModule(ctx context.Context, s source) (module, error) {
	dir, err := s.find()
	if err != nil {
		return module{}, err
	}
	version, err := s.versionIn(dir)
	if err != nil {
		return module{}, err
	}
	m := module{source: s, dir: dir, version: version}
	m.hash, err = m.fingerprint(ctx)
	return m, err
}

// modFile is the name of the file with the requirements.
func (s source) modFile() string { return cmp.Or(s.mod, "go.mod") }

// cacheFolder is the folder of the builds in the cache. Each version has its own, so that a build removes only former builds
// of the same version.
func (s source) cacheFolder() string {
	if s.mod == "" {
		return s.folder
	}
	return s.folder + "-" + strings.TrimSuffix(s.mod, ".mod")
}

// find returns the folder of the source, beside this source file or, when the binary
// was built with -trimpath and does not know, upward from the working directory.
func (s source) find() (string, error) {
	var starts []string
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		starts = append(starts, filepath.Dir(file))
	}
	if cwd, err := os.Getwd(); err == nil {
		starts = append(starts, cwd)
	}
	for _, dir := range starts {
		for {
			candidate := filepath.Join(dir, "test", s.folder)
			if _, err := os.Stat(filepath.Join(candidate, "go.mod")); err == nil {
				return candidate, nil
			}
			parent := filepath.Dir(dir)
			if parent == dir {
				break
			}
			dir = parent
		}
	}
	return "", fmt.Errorf("find the sources of %s: no test/%s/go.mod here or above: "+
		"run from inside a checkout of the repository", s.folder, s.folder)
}

// versionIn returns the version to build from the source in dir.
func (s source) versionIn(dir string) (string, error) {
	goMod, err := os.ReadFile(filepath.Join(dir, s.modFile()))
	if err != nil {
		return "", fmt.Errorf("read the module of %s: %w", s.folder, err)
	}
	return s.requiredVersion(goMod)
}

// requiredVersion returns the version that go.mod requires.
func (s source) requiredVersion(goMod []byte) (string, error) {
	require := regexp.MustCompile(`(?m)^\s*(?:require\s+)?` + regexp.QuoteMeta(s.requires) + `\s+(v\d+\.\d+\.\S+)`)
	match := require.FindSubmatch(goMod)
	if match == nil {
		return "", fmt.Errorf("find the version to build: test/%s/%s does not require %s", s.folder, s.modFile(), s.requires)
	}
	return string(match[1]), nil
}

// ldflags stamps the version that go.mod names, as a release build does. The
// commit is not known to a build from modules, and a date would make every build
// another binary.
func (m module) ldflags() string {
	numbers := strings.SplitN(strings.TrimPrefix(m.version, "v"), ".", 3)
	flags := []string{"-s", "-w"}
	for _, pkg := range m.stamped {
		for _, stamp := range [][2]string{
			{"gitVersion", m.version},
			{"gitMajor", numbers[0]},
			{"gitMinor", numbers[1]},
			{"gitCommit", "unknown"},
			{"gitTreeState", "clean"},
			{"buildDate", "1970-01-01T00:00:00Z"},
		} {
			flags = append(flags, fmt.Sprintf("-X=%s.%s=%s", pkg, stamp[0], stamp[1]))
		}
	}
	return strings.Join(flags, " ")
}

// env is the environment of every go command here: the nested module by itself,
// without the caller's workspace or C compiler.
func (m module) env() []string {
	return append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "PWD="+m.dir)
}

// goCommand returns a go command that runs in the nested module. When ctx ends it
// is interrupted, so that go can tidy up after itself.
func (m module) goCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = m.dir, m.env()
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = stopGrace
	return cmd
}

// fingerprint hashes the sources, the toolchain, the platform and the flags.
func (m module) fingerprint(ctx context.Context) (string, error) {
	cmd := m.goCommand(ctx, "env", "GOVERSION", "GOOS", "GOARCH", "GOFLAGS")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	toolchain, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("ask for the Go version (is go on the PATH?): %w\n%s", err, &stderr)
	}
	sum := sha256.New()
	say(sum, "%s\n%s", toolchain, m.ldflags())
	// WalkDir goes in lexical order, so that equal trees give equal hashes.
	err = filepath.WalkDir(m.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !m.isBuildInput(entry.Name()) {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(m.dir, path)
		say(sum, "%s %d\n%s", filepath.ToSlash(name), len(content), content)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read the sources of %s: %w", m.folder, err)
	}
	return hex.EncodeToString(sum.Sum(nil))[:16], nil
}

func (s source) isBuildInput(name string) bool {
	mod := s.modFile()
	return name == mod || name == strings.TrimSuffix(mod, ".mod")+".sum" ||
		strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go")
}
