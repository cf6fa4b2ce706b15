// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

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
