// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Names in the directory of a release.
const (
	sums  = "SHA256SUMS"
	notes = "release-notes.md"
)

func imageArchive(v version) string { return fmt.Sprintf("prebind-%s-image.tar", v) }
func chartArchive(v version) string { return fmt.Sprintf("prebind-%s-chart.tar", v) }
func programArchive(v version, p platform) string {
	return fmt.Sprintf("prebind-%s-%s.tar.gz", v, p)
}

// unpinned is the image in the manifests of the checkout.
const unpinned = registryOfReleases + "/" + imageRepository + ":latest"

// platform is a target of the Go compiler.
type platform struct{ os, arch string }

// String returns the platform as in file names.
func (p platform) String() string { return p.os + "-" + p.arch }

// build is the result of the compiler for one platform.
type build struct {
	platform platform
	// server is prebind, and client is kubectl-prebind.
	server, client program
}

// program is a binary with its SBOM, a CycloneDX document.
type program struct{ binary, sbom []byte }

func readProgram(path string) (p program, err error) {
	if p.binary, err = os.ReadFile(path); err != nil {
		return p, err
	}
	if p.sbom, err = os.ReadFile(path + ".cdx.json"); err != nil {
		return p, err
	}
	if p.sbom, err = portable(p.sbom); err != nil {
		return p, fmt.Errorf("SBOM of %s: %w", path, err)
	}
	return p, nil
}

// builds returns the builds in the directories GOOS-GOARCH of the stage, in lexical order.
func builds(stage string) ([]build, error) {
	dirs, err := filepath.Glob(filepath.Join(stage, "*-*", "prebind"))
	if err != nil {
		return nil, err
	}
	var all []build
	for _, path := range dirs {
		name := filepath.Base(filepath.Dir(path))
		goos, arch, _ := strings.Cut(name, "-")
		b := build{platform: platform{goos, arch}}
		if b.server, err = readProgram(path); err != nil {
			return nil, err
		}
		if b.client, err = readProgram(filepath.Join(filepath.Dir(path), "kubectl-prebind")); err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no binaries in %s: run make release", stage)
	}
	return all, nil
}

// licensesOf returns the license of Prebind and those of the modules in its binary, which every copy of the binary must contain.
func licensesOf(root, stage string) ([]file, error) {
	var files []file
	for _, path := range []string{filepath.Join(root, "LICENSE"), filepath.Join(stage, "THIRD_PARTY_LICENSES")} {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		files = append(files, file{filepath.Base(path), 0o644, content})
	}
	return slices.Clip(files), nil
}

// assemble writes all files of a release to an empty directory.
func assemble(s source, stage, out string) error {
	all, err := builds(stage)
	if err != nil {
		return err
	}
	licenses, err := licensesOf(s.root, stage)
	if err != nil {
		return err
	}
	var files []file
	add := func(name string, content []byte) {
		files = append(files, file{name: name, mode: 0o644, content: content})
	}

	var plugins []plugin
	var images []platformImage
	for _, b := range all {
		name := fmt.Sprintf("prebind-%s-%s", s.version, b.platform)
		archive, err := tarOf(s.time, append(licenses, file{"prebind", 0o755, b.server.binary}, file{"kubectl-prebind", 0o755, b.client.binary})...)
		if err != nil {
			return err
		}
		if archive, err = zip(archive); err != nil {
			return err
		}
		add(programArchive(s.version, b.platform), archive)
		add(name+".cdx.json", b.server.sbom)
		add(name+"-kubectl.cdx.json", b.client.sbom)
		plugins = append(plugins, plugin{platform: b.platform, archive: programArchive(s.version, b.platform), sum: sum(archive)})
		if b.platform.os != "linux" {
			continue
		}
		image, err := newImage(s, b.platform, b.server.binary, licenses)
		if err != nil {
			return err
		}
		bom, err := imageSBOM(s, b, image)
		if err != nil {
			return fmt.Errorf("SBOM of the image of %s: %w", b.platform, err)
		}
		add(fmt.Sprintf("prebind-%s-image-%s.cdx.json", s.version, b.platform), bom)
		images = append(images, platformImage{b.platform, image})
	}
	index, err := newIndex(s, images)
	if err != nil {
		return err
	}
	archive, err := layoutArchive(s.time, func(tag string) string { return registryOfReleases + "/" + imageRepository + ":" + tag }, tagged{string(s.version), index})
	if err != nil {
		return err
	}
	add(imageArchive(s.version), archive)
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	pinned := fmt.Sprintf("%s/%s:%s@%s", registryOfReleases, imageRepository, s.version, digest)

	manifests, err := filesOf(filepath.Join(stage, "manifests"))
	if err != nil {
		return err
	}
	for _, m := range manifests {
		content := bytes.ReplaceAll(m.content, []byte(unpinned), []byte(pinned))
		if bytes.Equal(content, m.content) {
			return fmt.Errorf("%s: no image %s to pin", m.name, unpinned)
		}
		add(m.name, content)
	}

	packaged, err := os.ReadFile(filepath.Join(stage, fmt.Sprintf("prebind-%s.tgz", s.version.number())))
	if err != nil {
		return err
	}
	chart, metadata, err := repack(s, packaged, pinned)
	if err != nil {
		return err
	}
	add(fmt.Sprintf("prebind-%s.tgz", s.version.number()), chart)
	artifacts, err := chartArtifacts(s, chart, metadata)
	if err != nil {
		return err
	}
	if archive, err = layoutArchive(s.time, func(tag string) string { return registryOfReleases + "/" + chartRepository + ":" + tag }, artifacts...); err != nil {
		return err
	}
	add(chartArchive(s.version), archive)

	krew, err := krewManifest(s.version, plugins)
	if err != nil {
		return err
	}
	add("krew.yaml", krew)
	add(notes, []byte(s.changes.text))
	add(sums, sumsOf(files))
	return write(out, files...)
}

func sum(content []byte) string {
	digest := sha256.Sum256(content)
	return hex.EncodeToString(digest[:])
}

// sumsOf returns the checksums in the format of sha256sum.
func sumsOf(files []file) []byte {
	var out bytes.Buffer
	for _, f := range files {
		fmt.Fprintf(&out, "%s  %s\n", sum(f.content), f.name)
	}
	return out.Bytes()
}
