// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
	return binary, nil
}

// clientProgram is the kubectl plugin.
const clientProgram = "kubectl-prebind"

// BuildClient compiles kubectl-prebind beside a binary of Build.
func BuildClient(ctx context.Context, binary string) error {
	root, err := checkout(ctx, "")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-o", filepath.Dir(binary), "./cmd/"+clientProgram)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", clientProgram, err, out)
	}
	return nil
}

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
