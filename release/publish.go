// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// publication describes where a release is and where it goes.
type publication struct {
	// root is the checkout.
	root string
	// dir is the directory of the release.
	dir string
	// registry is the prefix of the repositories.
	registry string
	out      io.Writer
}

// publish pushes the image and the chart, and creates the release on GitHub with the program gh. It returns an error before the first
// write if a file of the release was changed, or if the tag of the version is another commit than that of the image. You can repeat
// it.
func publish(ctx context.Context, v version, p publication) error {
	files, err := verify(p.dir)
	if err != nil {
		return err
	}
	commit, err := git(ctx, p.root, "rev-parse", "--verify", "refs/tags/"+string(v)+"^{commit}")
	if err != nil {
		return fmt.Errorf("no tag %s: run git tag -s %s -m %s: %w", v, v, v, err)
	}
	unpacked, err := os.MkdirTemp("", "prebind-publish-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(unpacked) //nolint:errcheck // Only a directory of this process.
	image, err := pushesOf(p.registry+"/"+imageRepository, filepath.Join(p.dir, imageArchive(v)), filepath.Join(unpacked, "image"))
	if err != nil {
		return err
	}
	chart, err := pushesOf(p.registry+"/"+chartRepository, filepath.Join(p.dir, chartArchive(v)), filepath.Join(unpacked, "chart"))
	if err != nil {
		return err
	}
	pushes := slices.Concat(image, chart)
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	for _, i := range pushes {
		if err := i.check(commit, options); err != nil {
			return err
		}
	}
	for _, i := range pushes {
		if err := remote.Push(i.tag, i.content, options...); err != nil {
			return fmt.Errorf("pushing %s: %w", i.tag, err)
		}
		fmt.Fprintf(p.out, "pushed %s@%s\n", i.tag, i.digest)
	}
	args := []string{"release", "create", string(v), "--verify-tag", "--title=" + string(v), "--notes-file=" + filepath.Join(p.dir, notes)}
	if v.prerelease() {
		args = append(args, "--prerelease")
	}
	for _, f := range files {
		args = append(args, filepath.Join(p.dir, f))
	}
	cmd := exec.CommandContext(ctx, "gh", args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.root, p.out, p.out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("image and chart are pushed, gh %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// verify returns the names of the files of a release. It returns an error if a file is missing, was changed, or is not in SHA256SUMS.
func verify(dir string) ([]string, error) {
	want, err := os.ReadFile(filepath.Join(dir, sums))
	if err != nil {
		return nil, fmt.Errorf("%s is not a release: run make release: %w", dir, err)
	}
	files, err := filesOf(dir)
	if err != nil {
		return nil, err
	}
	listed := map[string]string{}
	for line := range strings.Lines(string(want)) {
		digest, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		listed[name] = digest
	}
	var names []string
	var errs []error
	for _, f := range files {
		names = append(names, f.name)
		if f.name == sums {
			continue
		}
		if listed[f.name] != sum(f.content) {
			errs = append(errs, fmt.Errorf("%s does not match %s", f.name, sums))
		}
		delete(listed, f.name)
	}
	for name := range listed {
		errs = append(errs, fmt.Errorf("%s is missing", name))
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("%s was changed: run make release: %w", dir, errors.Join(errs...))
	}
	return names, nil
}

// push is a write to a registry.
type push struct {
	tag     name.Tag
	digest  v1.Hash
	content remote.Taggable
	// commit is the commit of the content. It is empty for content that does not depend on a version.
	commit string
}

// pushesOf unpacks an archive of layoutArchive in dir, and returns its entries.
func pushesOf(repository, archive, dir string) ([]push, error) {
	content, err := os.ReadFile(archive)
	if err != nil {
		return nil, fmt.Errorf("the directory contains another version: run make release: %w", err)
	}
	files, err := untar(bytes.NewReader(content))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", archive, err)
	}
	if err := write(dir, files...); err != nil {
		return nil, fmt.Errorf("unpacking %s: %w", archive, err)
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", archive, err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", archive, err)
	}
	var pushes []push
	for _, d := range manifest.Manifests {
		p, err := pushOf(repository, index, d)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", archive, err)
		}
		pushes = append(pushes, p)
	}
	return pushes, nil
}

// pushOf returns the push of an entry of a layout.
func pushOf(repository string, index v1.ImageIndex, d v1.Descriptor) (push, error) {
	tag, err := name.NewTag(repository + ":" + d.Annotations[refName])
	if err != nil {
		return push{}, err
	}
	p := push{tag: tag, digest: d.Digest}
	if d.MediaType.IsIndex() {
		image, err := index.ImageIndex(d.Digest)
		if err != nil {
			return push{}, err
		}
		m, err := image.IndexManifest()
		if err != nil {
			return push{}, err
		}
		p.content, p.commit = image, m.Annotations[revision]
		return p, nil
	}
	image, err := index.Image(d.Digest)
	if err != nil {
		return push{}, err
	}
	m, err := image.Manifest()
	if err != nil {
		return push{}, err
	}
	p.content, p.commit = image, m.Annotations[revision]
	return p, nil
}

// check returns an error if the content is from another commit than the tag of the version, or if the registry has other content for
// that version.
func (p push) check(commit string, options []remote.Option) error {
	if p.commit == "" {
		return nil
	}
	if p.commit != commit {
		return fmt.Errorf("%s is from commit %.12s, but the tag is %.12s: check out the tag and run make release", p.tag, p.commit, commit)
	}
	found, err := remote.Head(p.tag, options...)
	if e := (*transport.Error)(nil); errors.As(err, &e) && e.StatusCode == http.StatusNotFound {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading %s: %w", p.tag, err)
	}
	if found.Digest != p.digest {
		return fmt.Errorf("%s is published as %s, not %s: a published version never changes, so release a new version", p.tag, found.Digest, p.digest)
	}
	return nil
}
