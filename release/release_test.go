// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

const (
	tested    = version("v1.2.3")
	changelog = "# Changelog\n\n## Unreleased\n\n- Later.\n\n## 1.2.3 - 2026-01-02\n\nA paragraph\nof two lines.\n\n### Added\n\n- First\n  change, see [flags](docs/flags.md#hold).\n- Second\n  `code`\n  --flag, [site](https://example.com/a).\n\n### Removed\n\n- Third.\n\n## 1.2.2 - 2026-01-01\n\n### Added\n\n- Earlier.\n"
	bom       = `{"bomFormat":"CycloneDX","specVersion":"1.6","version":1,"metadata":{"tools":[{"name":"tool","hashes":[{"alg":"MD5","content":"d41d8cd98f00b204e9800998ecf8427e"}]}],"component":{"bom-ref":"main","type":"application","name":"prebind"}},"components":[{"bom-ref":"dep","type":"library","name":"dep"}],"dependencies":[{"ref":"main","dependsOn":["dep"]}]}`
)

// checkout returns a clean checkout with a changelog.
func checkout(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, write(dir,
		file{"CHANGELOG.md", 0o644, []byte(changelog)},
		file{"LICENSE", 0o644, []byte("Apache")},
		file{"charts/artifacthub-repo.yml", 0o644, []byte("owners: []\n")}))
	t.Setenv("GIT_COMMITTER_DATE", "2026-01-01T00:00:00Z")
	gitIn(t, dir, "init", "--quiet")
	commitIn(t, dir)
	return dir
}

func commitIn(t *testing.T, dir string) {
	t.Helper()
	gitIn(t, dir, "add", ".")
	gitIn(t, dir, "-c", "user.name=n", "-c", "user.email=e@example.com", "commit", "--quiet", "--message=m", "--date=2026-01-01T00:00:00Z")
}

func gitIn(t *testing.T, dir string, args ...string) {
	t.Helper()
	_, err := git(t.Context(), dir, args...)
	require.NoError(t, err)
}

func TestParseVersion(t *testing.T) {
	cases := map[string]struct {
		reason string
		valid  bool
	}{
		"v1.2.3":       {reason: "a release", valid: true},
		"v1.2.3-rc.1":  {reason: "a prerelease", valid: true},
		"1.2.3":        {reason: "tags of Go modules have a v"},
		"v1.2":         {reason: "the chart needs three numbers"},
		"v1.2.3+build": {reason: "+ is not allowed in the tag of an image"},
		"79e1443":      {reason: "git describe without a tag is the default of make"},
		"":             {reason: "the version is required"},
	}
	for text, tc := range cases {
		t.Run(text, func(t *testing.T) {
			_, err := parseVersion(text)
			assert.Equal(t, tc.valid, err == nil, "%s: %v", tc.reason, err)
		})
	}
}

func TestCheck(t *testing.T) {
	cases := map[string]struct {
		reason  string
		version version
		change  func(t *testing.T, dir string)
		fails   string
	}{
		"Clean":   {reason: "a release of HEAD", version: tested},
		"AtTag":   {reason: "the tag can exist", version: tested, change: func(t *testing.T, dir string) { gitIn(t, dir, "tag", string(tested)) }},
		"Unknown": {reason: "the changelog describes every release", version: "v9.0.0", fails: `no section "## 9.0.0 - YYYY-MM-DD"`},
		"Prefix":  {reason: "1.2.3-rc.1 is not 1.2.3", version: "v1.2.3-rc.1", fails: "no section"},
		"Untracked": {reason: "a file that is not committed can change the result", version: tested, fails: "commit or stash",
			change: func(t *testing.T, dir string) { require.NoError(t, write(dir, file{"new", 0o644, nil})) }},
		"IgnoredInChart": {reason: "helm package does not read .gitignore", version: tested, fails: "charts/.DS_Store",
			change: func(t *testing.T, dir string) {
				require.NoError(t, write(dir, file{".git/info/exclude", 0o644, []byte(".DS_Store\n")}, file{"charts/.DS_Store", 0o644, nil}))
			}},
		"Ignored": {reason: "bin contains the release", version: tested,
			change: func(t *testing.T, dir string) {
				require.NoError(t, write(dir, file{".git/info/exclude", 0o644, []byte("bin\n")}, file{"bin/release", 0o644, nil}))
			}},
		"OtherTag": {reason: "the tag is the source of the release", version: tested, fails: "check out the tag",
			change: func(t *testing.T, dir string) {
				gitIn(t, dir, "tag", string(tested))
				require.NoError(t, write(dir, file{"new", 0o644, nil}))
				commitIn(t, dir)
			}},
		"NoEntries": {reason: "release notes are not empty", version: tested, fails: "no entries",
			change: func(t *testing.T, dir string) {
				require.NoError(t, write(dir, file{"CHANGELOG.md", 0o644, []byte("## 1.2.3 - 2026-01-02\n")}))
			}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			dir := checkout(t)
			if tc.change != nil {
				tc.change(t, dir)
			}
			_, err := check(t.Context(), dir, tc.version)
			if tc.fails == "" {
				assert.NoError(t, err, tc.reason)
			} else {
				assert.ErrorContains(t, err, tc.fails, tc.reason)
			}
		})
	}
}

// GitHub shows a line break as <br>, and a relative link of a release as a missing page.
func TestChangesOf(t *testing.T) {
	s, err := changesOf(checkout(t), tested)
	require.NoError(t, err)
	const first = "First change, see [flags](https://github.com/prebind/prebind/blob/v1.2.3/docs/flags.md#hold)."
	const second = "Second `code` --flag, [site](https://example.com/a)."
	assert.Equal(t, []change{{"added", first}, {"added", second}, {"removed", "Third."}}, s.changes)
	assert.Equal(t, "A paragraph of two lines.\n\n### Added\n\n- "+first+"\n- "+second+"\n\n### Removed\n\n- Third.\n\n"+
		"[Install Prebind v1.2.3](https://github.com/prebind/prebind/blob/v1.2.3/docs/install.md)\n", s.text)
}

// Every link of the changelog of this repository works outside it.
func TestAbsolute_Changelog(t *testing.T) {
	content, err := os.ReadFile("../CHANGELOG.md")
	require.NoError(t, err)
	links := regexp.MustCompile(`\]\([^)]*\)`).FindAllString(absolute(string(content), tested), -1)
	require.NotEmpty(t, links)
	for _, link := range links {
		assert.Contains(t, link, "](https://")
	}
}

// stageOf writes the inputs of assemble, with the chart of this repository.
func stageOf(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, p := range []string{"linux-amd64", "linux-arm64", "darwin-amd64", "darwin-arm64"} {
		require.NoError(t, write(dir,
			file{p + "/prebind", 0o755, []byte("program of " + p)},
			file{p + "/prebind.cdx.json", 0o644, []byte(bom)},
			file{p + "/kubectl-prebind", 0o755, []byte("plugin for " + p)},
			file{p + "/kubectl-prebind.cdx.json", 0o644, []byte(bom)}))
	}
	require.NoError(t, write(dir,
		file{"manifests/install.yaml", 0o644, []byte("image: " + unpinned + "\n")},
		file{"THIRD_PARTY_LICENSES", 0o644, []byte("BSD")}))
	require.NoError(t, write(dir, file{"prebind-" + tested.number() + ".tgz", 0o644, packagedChart(t)}))
	return dir
}

// packaged is the chart of this repository, as Helm packages it. The tests in this package do not run in parallel.
var packaged []byte

func packagedChart(t *testing.T) []byte {
	t.Helper()
	if packaged == nil {
		dir := t.TempDir()
		helm(t, "package", "../charts/prebind", "--version="+tested.number(), "--app-version="+string(tested), "--destination="+dir)
		var err error
		packaged, err = os.ReadFile(filepath.Join(dir, "prebind-"+tested.number()+".tgz"))
		require.NoError(t, err)
	}
	return packaged
}

func helm(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"tool", "-modfile=../tools.mod", "helm"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "helm %v: %s", args, &stderr)
	return string(out)
}

// assembled returns a checkout at the tag, and the directory of its release.
func assembled(t *testing.T) (root, out string) {
	t.Helper()
	root, out = checkout(t), t.TempDir()
	gitIn(t, root, "tag", string(tested))
	s, err := check(t.Context(), root, tested)
	require.NoError(t, err)
	require.NoError(t, assemble(s, stageOf(t), out))
	return root, out
}

func assertImage(t *testing.T, image v1.Image, p v1.Platform) {
	t.Helper()
	config, err := image.ConfigFile()
	require.NoError(t, err)
	assert.Equal(t, p.Architecture, config.Architecture)
	assert.Equal(t, "65532:65532", config.Config.User, "the kubelet checks runAsNonRoot by the number")
	assert.Equal(t, []string{"/prebind"}, config.Config.Entrypoint)
	assert.Equal(t, "v1.2.3", config.Config.Labels["org.opencontainers.image.version"])
	layers, err := image.Layers()
	require.NoError(t, err)
	require.Len(t, layers, 1)
	content, err := layers[0].Uncompressed()
	require.NoError(t, err)
	files, err := untar(content)
	require.NoError(t, err)
	assert.Equal(t, []file{
		{"prebind", 0o755, []byte("program of linux-" + p.Architecture)},
		{"licenses/LICENSE", 0o644, []byte("Apache")},
		{"licenses/THIRD_PARTY_LICENSES", 0o644, []byte("BSD")},
	}, files, "the binary of the release, the licenses, and nothing else")
}

func assertChart(t *testing.T, path, image string) {
	t.Helper()
	var chart struct {
		Version, AppVersion string
		Annotations         map[string]string
	}
	require.NoError(t, yaml.Unmarshal([]byte(helm(t, "show", "chart", path)), &chart))
	assert.Equal(t, "1.2.3", chart.Version)
	assert.Equal(t, "v1.2.3", chart.AppVersion, "it is the tag of the image")
	assert.YAMLEq(t, "[{name: prebind, image: \""+image+"\"}]", chart.Annotations["artifacthub.io/images"])
	var changes []change
	require.NoError(t, yaml.Unmarshal([]byte(chart.Annotations["artifacthub.io/changes"]), &changes))
	require.Len(t, changes, 3)
	assert.Equal(t, change{"removed", "Third."}, changes[2])

	_, digest, _ := strings.Cut(image, "@")
	own := "sha256:" + strings.Repeat("1", 64)
	cases := map[string]struct {
		reason string
		values []string
		image  string
	}{
		"Default":    {reason: "a tag can move", image: "ghcr.io/prebind/prebind:v1.2.3@" + digest},
		"Repository": {reason: "an image that users built has another digest", values: []string{"image.repository=example.com/prebind"}, image: "example.com/prebind:v1.2.3"},
		"Tag":        {reason: "another version has another digest", values: []string{"image.tag=v1.2.4"}, image: "ghcr.io/prebind/prebind:v1.2.4"},
		"Digest":     {reason: "users can pin another image", values: []string{"image.digest=" + own}, image: "ghcr.io/prebind/prebind@" + own},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			args := []string{"template", "prebind", path, "--kube-version=1.36.0"}
			for _, v := range tc.values {
				args = append(args, "--set="+v)
			}
			images := regexp.MustCompile(`(?m)^ +image: (.+)$`).FindAllStringSubmatch(helm(t, args...), -1)
			require.Len(t, images, 2, "the Deployment and the Job of the removal")
			assert.Equal(t, tc.image, images[0][1], tc.reason)
			assert.Equal(t, tc.image, images[1][1], tc.reason)
		})
	}
}

func TestAssemble(t *testing.T) {
	_, out := assembled(t)
	packaged = nil // Helm packages the chart at another time.
	_, again := assembled(t)
	first, err := filesOf(out)
	require.NoError(t, err)
	second, err := filesOf(again)
	require.NoError(t, err)
	var names []string
	for i, f := range first {
		names = append(names, f.name)
		assert.Equal(t, sum(f.content), sum(second[i].content), "%s does not depend on the time and the directory", f.name)
	}
	assert.Equal(t, []string{
		"SHA256SUMS", "install.yaml", "krew.yaml", "prebind-1.2.3.tgz", "prebind-v1.2.3-chart.tar",
		"prebind-v1.2.3-darwin-amd64-kubectl.cdx.json", "prebind-v1.2.3-darwin-amd64.cdx.json", "prebind-v1.2.3-darwin-amd64.tar.gz",
		"prebind-v1.2.3-darwin-arm64-kubectl.cdx.json", "prebind-v1.2.3-darwin-arm64.cdx.json", "prebind-v1.2.3-darwin-arm64.tar.gz", "prebind-v1.2.3-image-linux-amd64.cdx.json",
		"prebind-v1.2.3-image-linux-arm64.cdx.json", "prebind-v1.2.3-image.tar",
		"prebind-v1.2.3-linux-amd64-kubectl.cdx.json", "prebind-v1.2.3-linux-amd64.cdx.json", "prebind-v1.2.3-linux-amd64.tar.gz",
		"prebind-v1.2.3-linux-arm64-kubectl.cdx.json", "prebind-v1.2.3-linux-arm64.cdx.json", "prebind-v1.2.3-linux-arm64.tar.gz", "release-notes.md",
	}, names)
	assertKrew(t, out)
	assertImageSBOM(t, filepath.Join(out, "prebind-v1.2.3-image-linux-amd64.cdx.json"))
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS")
	check.Dir = out
	report, err := check.CombinedOutput()
	assert.NoError(t, err, "%s", report)
}

// assertKrew does what krew does with the manifest: it checks and unpacks each archive, and finds the program in it.
func assertKrew(t *testing.T, out string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(out, "krew.yaml"))
	require.NoError(t, err)
	var manifest struct {
		Spec struct {
			Version   string
			Platforms []struct {
				URI, SHA256, Bin string
				Selector         struct{ MatchLabels map[string]string }
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(content, &manifest))
	assert.Equal(t, "v1.2.3", manifest.Spec.Version)
	require.Len(t, manifest.Spec.Platforms, 4)
	for _, p := range manifest.Spec.Platforms {
		base := strings.TrimPrefix(p.URI, "https://github.com/prebind/prebind/releases/download/v1.2.3/")
		archive, err := os.ReadFile(filepath.Join(out, base))
		require.NoError(t, err)
		assert.Equal(t, sum(archive), p.SHA256)
		unzipped, err := gzip.NewReader(bytes.NewReader(archive))
		require.NoError(t, err)
		files, err := untar(unzipped)
		require.NoError(t, err)
		target := p.Selector.MatchLabels["os"] + "-" + p.Selector.MatchLabels["arch"]
		assert.Equal(t, []file{
			{"LICENSE", 0o644, []byte("Apache")},
			{"THIRD_PARTY_LICENSES", 0o644, []byte("BSD")},
			{"prebind", 0o755, []byte("program of " + target)},
			{p.Bin, 0o755, []byte("plugin for " + target)},
		}, files)
	}
}

func assertImageSBOM(t *testing.T, path string) {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	var doc cdx.BOM
	require.NoError(t, cdx.NewBOMDecoder(bytes.NewReader(content), cdx.BOMFileFormatJSON).Decode(&doc))
	assert.Equal(t, cdx.ComponentTypeContainer, doc.Metadata.Component.Type)
	assert.Contains(t, doc.Metadata.Component.PackageURL, "pkg:oci/prebind@sha256%3A")
	require.Len(t, *doc.Components, 2, "the program and its module")
	assert.Nil(t, (*doc.Metadata.Tools.Tools)[0].Hashes, "the checksum of the tool depends on the machine")
	assert.Equal(t, "main", (*doc.Components)[0].BOMRef)
}

func TestAssemble_RefusesUnpinnedManifest(t *testing.T) {
	root, stage := checkout(t), stageOf(t)
	require.NoError(t, write(stage, file{"manifests/install.yaml", 0o644, []byte("image: example.com/prebind\n")}))
	s, err := check(t.Context(), root, tested)
	require.NoError(t, err)
	assert.ErrorContains(t, assemble(s, stage, t.TempDir()), "no image")
}

// The archive of the image is an OCI layout whose entry has the names that podman and containerd read.
func TestImageArchive(t *testing.T) {
	_, out := assembled(t)
	archive, err := os.Open(filepath.Join(out, imageArchive(tested)))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, archive.Close()) })
	files, err := untar(io.Reader(archive))
	require.NoError(t, err)
	content := map[string][]byte{}
	for _, f := range files {
		content[f.name] = f.content
	}
	assert.Contains(t, content, "oci-layout")
	var index v1.IndexManifest
	require.NoError(t, json.Unmarshal(content["index.json"], &index))
	require.Len(t, index.Manifests, 1)
	assert.Equal(t, map[string]string{
		"org.opencontainers.image.ref.name": "v1.2.3",
		"io.containerd.image.name":          "ghcr.io/prebind/prebind:v1.2.3",
	}, index.Manifests[0].Annotations)
}
