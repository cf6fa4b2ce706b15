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
	"net/url"
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
	// github is true if the release is also created on GitHub. All users then see it, so it must be complete and readable.
	github bool
	out    io.Writer
}

// platforms are those of every release on GitHub: the default of PLATFORMS in the Makefile.
var platforms = []platform{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}}

// publish pushes the image and the chart. If p.github is set, it creates the release on GitHub with the program gh. It returns an
// error before the first write if a file of the release was changed, if the tag of the version is another commit than that of the
// image, or if the release on GitHub could not be created later. You can repeat it.
func publish(ctx context.Context, v version, p publication) error {
	files, err := verify(p.dir)
	if err != nil {
		return err
	}
	commit, err := git(ctx, p.root, "rev-parse", "--verify", "refs/tags/"+string(v)+"^{commit}")
	if err != nil {
		return fmt.Errorf("no tag %s: run git tag -s %s -m %s: %w", v, v, v, err)
	}
	if p.github {
		if err := checkPlatforms(v, files); err != nil {
			return err
		}
		if err := checkGitHub(ctx, v, commit); err != nil {
			return err
		}
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
		if err := remote.Push(i.tag, i.content, options...); isStatus(err, http.StatusUnauthorized, http.StatusForbidden) {
			return fmt.Errorf("pushing %s: log in to %s with a token that has the scope write:packages: %w", i.tag, i.tag.RegistryStr(), err)
		} else if err != nil {
			return fmt.Errorf("pushing %s: %w", i.tag, err)
		}
		fmt.Fprintf(p.out, "pushed %s@%s\n", i.tag, i.digest)
	}
	if !p.github {
		fmt.Fprintf(p.out, "no release on GitHub: it belongs to %s, and the registry is %s\n", registryOfReleases, p.registry)
		return nil
	}
	if err := checkPublic(ctx, pushes); err != nil {
		return fmt.Errorf("image and chart are pushed, but there is no release on GitHub yet:\n%w", err)
	}
	return createRelease(ctx, v, p, files)
}

// checkPlatforms returns an error if the release does not contain the program for all platforms.
func checkPlatforms(v version, files []string) error {
	var errs []error
	for _, p := range platforms {
		if name := programArchive(v, p); !slices.Contains(files, name) {
			errs = append(errs, fmt.Errorf("%s is missing: run make release without PLATFORMS", name))
		}
	}
	return errors.Join(errs...)
}

// checkGitHub returns an error if gh has no credentials, or if the repository on GitHub does not have the tag at the commit.
func checkGitHub(ctx context.Context, v version, commit string) error {
	if _, err := gh(ctx, "auth", "status", "--hostname="+githubHost); err != nil {
		return fmt.Errorf("no access to GitHub: run gh auth login: %w", err)
	}
	pushed, err := gh(ctx, "api", "--hostname="+githubHost, "--jq=.sha", "repos/"+githubRepository+"/commits/tags/"+string(v))
	if err != nil {
		return fmt.Errorf("reading the tag %s of %s: run git push origin %s client/%s: %w", v, project, v, v, err)
	}
	if pushed != commit {
		return fmt.Errorf("the tag %s of %s is commit %.12s, but here it is %.12s: fetch the tag, check it out, and run make release", v, project, pushed, commit)
	}
	return nil
}

// checkPublic returns an error if users without credentials cannot read what was pushed. GitHub creates private packages.
func checkPublic(ctx context.Context, pushes []push) error {
	var errs []error
	sameRepository := func(a, b push) bool { return a.tag.RepositoryStr() == b.tag.RepositoryStr() }
	for _, p := range slices.CompactFunc(slices.Clone(pushes), sameRepository) {
		if _, err := remote.Head(p.tag, remote.WithContext(ctx)); err != nil {
			_, pkg, _ := strings.Cut(p.tag.RepositoryStr(), "/")
			errs = append(errs, fmt.Errorf("%s cannot be read without credentials: set the visibility of the package to public in "+
				"https://github.com/orgs/prebind/packages/container/%s/settings, and run make publish again: %w", p.tag, url.PathEscape(pkg), err))
		}
	}
	return errors.Join(errs...)
}

// createRelease creates the release on GitHub with all files.
func createRelease(ctx context.Context, v version, p publication, files []string) error {
	args := []string{
		"release", "create", string(v), "--repo=" + githubHost + "/" + githubRepository, "--verify-tag",
		"--title=" + string(v), "--notes-file=" + filepath.Join(p.dir, notes),
	}
	if v.prerelease() {
		args = append(args, "--prerelease")
	}
	for _, f := range files {
		args = append(args, filepath.Join(p.dir, f))
	}
	page, err := gh(ctx, args...)
	if err != nil {
		return fmt.Errorf("image and chart are pushed, but there is no release on GitHub: %w", err)
	}
	fmt.Fprintln(p.out, page)
	return nil
}

// gh returns the output of the GitHub CLI.
func gh(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "gh", args...).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	if err != nil {
		return "", fmt.Errorf("gh %s: %w", strings.Join(args, " "), err)
	}
	return string(bytes.TrimSpace(out)), nil
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
	// Some registries do not disclose that a repository is missing. If the permission is missing, the push fails.
	if isStatus(err, http.StatusNotFound, http.StatusUnauthorized, http.StatusForbidden) {
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

// isStatus returns true if err is a response of a registry with one of the codes.
func isStatus(err error, codes ...int) bool {
	response := (*transport.Error)(nil)
	return errors.As(err, &response) && slices.Contains(codes, response.StatusCode)
}
