// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// BuildOptions configures Build.
type BuildOptions struct {
	// Root is the directory of another checkout. Empty means this checkout.
	Root string
	// Package is the main package. Empty means ./cmd/prebind.
	Package string
	// Race enables the race detector, which requires a C compiler.
	Race bool
	// Clock makes time.Now return the time of Replica.SetClock.
	Clock bool
	// Client also builds kubectl-prebind, beside prebind.
	Client bool
	// Dir is the output directory. Build writes bin/prebind in it.
	Dir string
}

// Build compiles prebind, and returns the path of the binary.
func Build(ctx context.Context, o BuildOptions) (string, error) {
	root, err := checkout(ctx, o.Root)
	if err != nil {
		return "", err
	}
	binary := filepath.Join(o.Dir, "bin", "prebind")
	args := []string{"build", "-o", binary}
	if o.Race {
		args = append(args, "-race")
	}
	command, env := "go", os.Environ()
	if o.Clock {
		c, err := buildClocked(ctx, root)
		if err != nil {
			return "", fmt.Errorf("building prebind: %w", err)
		}
		command, env = c.command, append(env, c.env...)
		overlay, err := writeOverlay(o.Dir, c.files)
		if err != nil {
			return "", fmt.Errorf("building prebind: %w", err)
		}
		args = append(args, "-overlay="+overlay)
	}
	pkg := o.Package
	if pkg == "" {
		pkg = "./cmd/prebind"
	}
	cmd := exec.CommandContext(ctx, command, append(args, pkg)...)
	cmd.Dir, cmd.Env = root, env
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building prebind: %w\n%s", err, out)
	}
	if o.Client {
		cmd := exec.CommandContext(ctx, "go", "build", "-o", filepath.Dir(binary), "./cmd/"+clientProgram)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("building %s: %w\n%s", clientProgram, err, out)
		}
	}
	return binary, nil
}

// clientProgram is the kubectl plugin.
const clientProgram = "kubectl-prebind"

// writeOverlay writes replacement files for a build below dir, and returns the argument of go build -overlay. The map contains
// the content by the path of the replaced file.
func writeOverlay(dir string, files map[string][]byte) (string, error) {
	dir = filepath.Join(dir, "overlay")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("writing the overlay: %w", err)
	}
	replaced := map[string]string{}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		replaced[path] = filepath.Join(dir, fmt.Sprintf("%d-%s", len(replaced), filepath.Base(path)))
		if err := os.WriteFile(replaced[path], files[path], 0o644); err != nil {
			return "", fmt.Errorf("writing the overlay: %w", err)
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return "", fmt.Errorf("writing the overlay: %w", err)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, overlay, 0o644); err != nil {
		return "", fmt.Errorf("writing the overlay: %w", err)
	}
	return path, nil
}

// moduleDir returns the directory of a module.
func moduleDir(ctx context.Context, module string) (string, error) {
	dir, err := output(exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module))
	if err != nil {
		return "", fmt.Errorf("finding the directory of module %s: run this in a checkout with go in PATH: %w", module, err)
	}
	return dir, nil
}

// tools contains the paths of the binaries by root and name.
var tools struct {
	sync.Mutex
	paths map[[2]string]string
}

// Tool returns a command that runs a tool of tools.mod, in the checkout at root. go tool needs ten times as long as most calls of the
// tools, so Tool uses it only for the first command of each name, which also builds the binary. It is safe for concurrent use.
func Tool(ctx context.Context, root, name string, args ...string) (*exec.Cmd, error) {
	tools.Lock()
	defer tools.Unlock()
	key := [2]string{root, name}
	path := tools.paths[key]
	if path == "" {
		var err error
		if path, err = toolPath(ctx, root, name); err != nil {
			return nil, fmt.Errorf("building %s: %w", name, err)
		}
		if tools.paths == nil {
			tools.paths = map[[2]string]string{}
		}
		tools.paths[key] = path
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = root
	return cmd, nil
}

// toolPath builds the tool and returns its path in the build cache.
func toolPath(ctx context.Context, root, name string) (path string, err error) {
	// The call that builds the binary prints a temporary path, and the next one the path in the cache.
	for range 2 {
		cmd := exec.CommandContext(ctx, "go", "tool", "-modfile="+filepath.Join(root, "tools.mod"), "-n", name)
		cmd.Dir = root
		if path, err = output(cmd); err != nil {
			return "", err
		}
		if _, err = os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s does not exist after the build", path)
}

// output returns what the command prints, without surrounding space. An error contains what it prints to standard error.
func output(cmd *exec.Cmd) (string, error) {
	out, err := cmd.Output()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		err = fmt.Errorf("%w\n%s", err, failed.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}
