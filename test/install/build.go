// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
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

// Version is a version of Prebind: the root of its checkout or its manifest, as in Options, and its program.
type Version struct{ Root, Manifest, Binary string }

// checkout returns the root, or that of this checkout if root is empty.
func checkout(ctx context.Context, root string) (string, error) {
	if root != "" {
		return root, nil
	}
	return moduleDir(ctx, "github.com/prebind/prebind")
}

// LastRelease returns the latest tag v* before the current commit that is not a release candidate. If there is none, it returns
// the fallback, or the oldest commit of a shallow clone that does not contain the fallback.
func LastRelease(ctx context.Context, fallback string) (string, error) {
	tags, err := git(ctx, "tag", "--list", "v[0-9]*", "--merged", "HEAD", "--no-contains", "HEAD", "--sort=-version:refname")
	if err != nil {
		return "", err
	}
	for tag := range strings.Lines(tags) {
		if !strings.Contains(tag, "-") {
			return strings.TrimSpace(tag), nil
		}
	}
	shallow, err := git(ctx, "rev-parse", "--is-shallow-repository")
	if err != nil || shallow != "true" {
		return fallback, err
	}
	if _, err := git(ctx, "cat-file", "-e", fallback+"^{commit}"); err == nil {
		return fallback, nil
	}
	oldest, err := git(ctx, "rev-list", "--max-parents=0", "HEAD")
	if err != nil {
		return "", err
	}
	oldest, _, _ = strings.Cut(oldest, "\n")
	return oldest, nil
}

// Extract writes the files of a tag or commit to a directory, which it keeps for later runs, and returns its path.
func Extract(ctx context.Context, ref string) (string, error) {
	commit, err := git(ctx, "rev-parse", "--verify", "--quiet", ref+"^{commit}")
	if err != nil {
		return "", fmt.Errorf("%s is not in this clone: run 'git fetch --unshallow --tags' or 'git fetch --tags': %w", ref, err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "prebind", "versions", commit)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", fmt.Errorf("extracting %s: %w", ref, err)
	}
	unfinished, err := os.MkdirTemp(filepath.Dir(dir), ".unfinished-")
	if err != nil {
		return "", fmt.Errorf("extracting %s: %w", ref, err)
	}
	defer func() { _ = os.RemoveAll(unfinished) }()
	archive := filepath.Join(unfinished, "files.tar")
	if _, err := git(ctx, "archive", "--format=tar", "--output="+archive, commit); err != nil {
		return "", err
	}
	files := filepath.Join(unfinished, "files")
	if err := os.Mkdir(files, 0o755); err != nil {
		return "", fmt.Errorf("extracting %s: %w", ref, err)
	}
	if out, err := exec.CommandContext(ctx, "tar", "-xf", archive, "-C", files).CombinedOutput(); err != nil {
		return "", fmt.Errorf("extracting %s: %w\n%s", ref, err, out)
	}
	// Another process can have extracted the same commit in the meantime.
	if err := os.Rename(files, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("extracting %s: %w", ref, err)
	}
	return dir, nil
}

// git runs git in this checkout and returns its output without the final line break.
func git(ctx context.Context, args ...string) (string, error) {
	root, err := checkout(ctx, "")
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = root
	out, err := output(cmd)
	if err != nil {
		return "", fmt.Errorf("git %s (the upgrade test needs a clone, not an archive of the sources): %w", strings.Join(args, " "), err)
	}
	return out, nil
}

// Use sets the program for replicas that start later. It does not change the manifests, like 'kubectl set image'.
func (p *Prebind) Use(v Version) { p.o.Binary = v.Binary }

// Upgrade applies the manifests of the version, and sets program and command line for replicas that start later.
func (p *Prebind) Upgrade(ctx context.Context, v Version) error {
	p.Use(v)
	p.root, p.o.Manifest = v.Root, v.Manifest
	if err := p.chooseSource(ctx); err != nil {
		return fmt.Errorf("upgrade: %w", err)
	}
	return p.applyAgain(ctx)
}

// Replace starts another replica, and then stops the old one, like a rollout.
func (p *Prebind) Replace(ctx context.Context, old *Replica, extraArgs ...string) (*Replica, error) {
	r, err := p.Start(ctx, extraArgs...)
	if err != nil {
		return r, err
	}
	return r, p.Remove(old)
}

// Rollout replaces all replicas, one after another.
func (p *Prebind) Rollout(ctx context.Context, extraArgs ...string) error {
	for _, old := range p.Replicas() {
		if _, err := p.Replace(ctx, old, extraArgs...); err != nil {
			return err
		}
	}
	return nil
}

// Remove stops a replica like a deleted pod, and removes it from Replicas.
func (p *Prebind) Remove(r *Replica) error {
	err := errors.Join(r.Err(), r.Process.Stop())
	p.replicas = slices.DeleteFunc(p.replicas, func(other *Replica) bool { return other == r })
	p.route()
	return err
}
