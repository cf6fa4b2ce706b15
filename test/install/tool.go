// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

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
