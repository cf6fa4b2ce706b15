// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// BuildOptions say how to build the program.
type BuildOptions struct {
	// Package is the program's; ./cmd/prebind if it is empty.
	Package string
	// Race has the race detector in it; it needs a C compiler.
	Race bool
	// Tags are build tags.
	Tags []string
	// Clock has time.Now tell what Replica.SetClock says.
	Clock bool
	// Dir gets the binary, bin/prebind.
	Dir string
}

// Build compiles the program prebind from this checkout and returns the binary's
// path.
func Build(ctx context.Context, o BuildOptions) (string, error) {
	root, err := moduleDir(ctx, "github.com/prebind/prebind")
	if err != nil {
		return "", err
	}
	binary := filepath.Join(o.Dir, "bin", "prebind")
	args := []string{"build", "-o", binary}
	if o.Race {
		args = append(args, "-race")
	}
	if len(o.Tags) > 0 {
		args = append(args, "-tags="+strings.Join(o.Tags, ","))
	}
	command, env := "go", os.Environ()
	if o.Clock {
		c, err := buildClocked(ctx, root, o.Dir)
		if err != nil {
			return "", fmt.Errorf("building prebind: %w", err)
		}
		command, env, args = c.command, append(env, c.env...), append(args, "-overlay="+c.overlay)
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

// moduleDir is where a module's files are.
func moduleDir(ctx context.Context, module string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("finding the files of %s (run it in a checkout, with go on the PATH): %w\n%s", module, err, &stderr)
	}
	return strings.TrimSpace(string(out)), nil
}
