// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package release_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

const atTag = "https://github.com/prebind/prebind/blob/" + current

// The names are a contract with users.
func TestRelease_Files(t *testing.T) {
	t.Parallel()
	dir := releaseOf(t, current)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	assert.Equal(t, []string{
		"SHA256SUMS", "first-install-self-managed.yaml", "first-install.yaml", "install-self-managed.yaml", "install.yaml", "krew.yaml", "prebind-99.0.0.tgz",
		"prebind-v99.0.0-image-linux-amd64.cdx.json", "prebind-v99.0.0-image-linux-arm64.cdx.json", "prebind-v99.0.0-image.tar",
		"prebind-v99.0.0-linux-amd64-kubectl.cdx.json", "prebind-v99.0.0-linux-amd64.cdx.json", "prebind-v99.0.0-linux-amd64.tar.gz",
		"prebind-v99.0.0-linux-arm64-kubectl.cdx.json", "prebind-v99.0.0-linux-arm64.cdx.json", "prebind-v99.0.0-linux-arm64.tar.gz", "release-notes.md",
	}, names)
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS")
	check.Dir = dir
	report, err := check.CombinedOutput()
	require.NoError(t, err, "%s", report)
	assert.Equal(t, len(names)-1, strings.Count(string(read(t, filepath.Join(dir, "SHA256SUMS"))), "\n"), "each file has a checksum")

	// GitHub shows a line break as <br>, and a relative link of a release as a missing page.
	assert.Equal(t, "### Added\n\n- A change of [`--hold`]("+atTag+"/docs/flags.md#hold).\n- It's another.\n\n\n[Install Prebind v99.0.0]("+atTag+"/docs/install.md)\n",
		string(read(t, filepath.Join(dir, "release-notes.md"))))
}

// Later changes of the documentation can be about another version.
func TestRelease_LinksToItsDocumentation(t *testing.T) {
	t.Parallel()
	kubectl := filepath.Join(filepath.Dir(programOf(t, current)), "kubectl-prebind")
	for _, command := range [][]string{{"conformance", "--help"}, {"policy", "test", "--help"}} {
		help, err := exec.CommandContext(t.Context(), kubectl, command...).Output()
		require.NoError(t, err)
		assert.Contains(t, string(help), atTag+"/docs/", "%v", command)
	}
	for name, file := range unpack(t, read(t, filepath.Join(releaseOf(t, current), "prebind-99.0.0.tgz"))) {
		assert.NotContains(t, string(file.content), "prebind/blob/main", name)
		if name == "prebind/files/monitoring/prometheusrule.yaml" {
			assert.Contains(t, string(file.content), "runbook_url: "+atTag+"/docs/runbooks/")
		}
	}
}

// Every link of the changelog to a file of the repository becomes one to the tag.
func TestRelease_ChangelogHasNoOtherLinks(t *testing.T) {
	t.Parallel()
	relative := regexp.MustCompile(`^[\w./-]+(#[\w-]+)?$`)
	for _, link := range regexp.MustCompile(`\]\(([^)]*)\)`).FindAllStringSubmatch(string(read(t, filepath.Join(root, "CHANGELOG.md"))), -1) {
		assert.True(t, strings.HasPrefix(link[1], "https://") || relative.MatchString(link[1]), link[1])
	}
}

// krew checks and unpacks the archive of the platform, and finds the program in it.
func TestRelease_Krew(t *testing.T) {
	t.Parallel()
	var manifest struct {
		Spec struct {
			Version   string
			Platforms []struct {
				URI, SHA256, Bin string
				Selector         struct{ MatchLabels struct{ OS, Arch string } }
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(read(t, filepath.Join(releaseOf(t, current), "krew.yaml")), &manifest))
	assert.Equal(t, current, manifest.Spec.Version)
	require.Len(t, manifest.Spec.Platforms, 2)
	for _, p := range manifest.Spec.Platforms {
		platform := p.Selector.MatchLabels.OS + "-" + p.Selector.MatchLabels.Arch
		name, ok := strings.CutPrefix(p.URI, "https://github.com/prebind/prebind/releases/download/v99.0.0/")
		assert.True(t, ok, p.URI)
		assert.Equal(t, "prebind-v99.0.0-"+platform+".tar.gz", name)
		assert.Equal(t, sumOf(read(t, filepath.Join(releaseOf(t, current), name))), p.SHA256)
		files := archiveOf(t, current, platform)
		assert.ElementsMatch(t, []string{"LICENSE", "THIRD_PARTY_LICENSES", "kubectl-prebind", "prebind"}, slices.Collect(maps.Keys(files)))
		assert.Equal(t, fs.FileMode(0o755), files[p.Bin].mode)
		assert.Equal(t, fs.FileMode(0o644), files["LICENSE"].mode)
	}
}

func sumOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// descriptor refers to a blob of an image.
type descriptor struct {
	Digest      string
	Annotations map[string]string
	Platform    struct{ Architecture string }
}

// blob returns the blob of an OCI layout.
func blob(layout map[string]entry, d descriptor) []byte {
	return layout["blobs/"+strings.Replace(d.Digest, ":", "/", 1)].content
}

// The image is an OCI layout with an entry that has the names that podman and containerd read. It contains the program of the
// release and the licenses.
func TestRelease_Image(t *testing.T) {
	t.Parallel()
	dir := releaseOf(t, current)
	layout := unpack(t, read(t, filepath.Join(dir, "prebind-v99.0.0-image.tar")))
	var top, index struct{ Manifests []descriptor }
	require.NoError(t, json.Unmarshal(layout["index.json"].content, &top))
	require.Len(t, top.Manifests, 1, "skopeo needs no name")
	assert.Equal(t, map[string]string{
		"org.opencontainers.image.ref.name": "v99.0.0",
		"io.containerd.image.name":          "ghcr.io/prebind/prebind:v99.0.0",
	}, top.Manifests[0].Annotations)
	assert.Contains(t, string(read(t, filepath.Join(dir, "install.yaml"))), "image: ghcr.io/prebind/prebind:v99.0.0@"+top.Manifests[0].Digest+"\n")

	require.NoError(t, json.Unmarshal(blob(layout, top.Manifests[0]), &index))
	require.Len(t, index.Manifests, 2)
	for i, arch := range []string{"amd64", "arm64"} {
		assert.Equal(t, arch, index.Manifests[i].Platform.Architecture)
		var manifest struct {
			Config descriptor
			Layers []descriptor
		}
		require.NoError(t, json.Unmarshal(blob(layout, index.Manifests[i]), &manifest))
		var config struct {
			Architecture string
			Config       struct {
				User            string
				Entrypoint, Cmd []string
				Labels          map[string]string
			}
		}
		require.NoError(t, json.Unmarshal(blob(layout, manifest.Config), &config))
		assert.Equal(t, arch, config.Architecture)
		assert.Equal(t, "65532:65532", config.Config.User, "the kubelet checks runAsNonRoot by the number")
		assert.Equal(t, []string{"/prebind", "serve"}, slices.Concat(config.Config.Entrypoint, config.Config.Cmd))
		assert.Equal(t, "v99.0.0", config.Config.Labels["org.opencontainers.image.version"])
		require.Len(t, manifest.Layers, 1)
		files, archive := unpack(t, blob(layout, manifest.Layers[0])), archiveOf(t, current, "linux-"+arch)
		assert.ElementsMatch(t, []string{"licenses/LICENSE", "licenses/THIRD_PARTY_LICENSES", "prebind"}, slices.Collect(maps.Keys(files)))
		assert.Equal(t, fs.FileMode(0o755), files["prebind"].mode)
		assert.Equal(t, sumOf(archive["prebind"].content), sumOf(files["prebind"].content))
		assertSBOM(t, filepath.Join(dir, "prebind-v99.0.0-image-linux-"+arch+".cdx.json"), index.Manifests[i].Digest)
	}
}

// assertSBOM checks that the SBOM of an image contains that of the program.
func assertSBOM(t *testing.T, path, digest string) {
	t.Helper()
	type component struct {
		Ref  string `json:"bom-ref"`
		Type string `json:"type"`
		PURL string `json:"purl"`
	}
	var sbom struct {
		Metadata struct {
			Component component
			Tools     []map[string]any
		}
		Components []component
	}
	require.NoError(t, json.Unmarshal(read(t, path), &sbom))
	assert.Equal(t, "container", sbom.Metadata.Component.Type)
	assert.True(t, strings.HasPrefix(sbom.Metadata.Component.PURL, "pkg:oci/prebind@"+strings.Replace(digest, ":", "%3A", 1)+"?"), sbom.Metadata.Component.PURL)
	require.Greater(t, len(sbom.Components), 10)
	assert.Contains(t, sbom.Components[0].Ref, "github.com/prebind/prebind@v99.0.0")
	require.Len(t, sbom.Metadata.Tools, 1)
	assert.NotContains(t, sbom.Metadata.Tools[0], "hashes", "the checksum of the tool depends on the machine")
}

// The chart pins the image of the release, unless the values choose another one.
func TestRelease_Chart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(releaseOf(t, current), "prebind-99.0.0.tgz")
	helm := func(args ...string) string {
		t.Helper()
		out, err := tool(t, "helm", args...).Output()
		require.NoError(t, err)
		return string(out)
	}
	var chart struct {
		Version, AppVersion string
		Annotations         map[string]string
	}
	require.NoError(t, yaml.Unmarshal([]byte(helm("show", "chart", path)), &chart))
	assert.Equal(t, "99.0.0", chart.Version)
	assert.Equal(t, current, chart.AppVersion, "it is the tag of the image")
	image := chart.Annotations["prebind.dev/image"]
	assert.Contains(t, string(read(t, filepath.Join(releaseOf(t, current), "install.yaml"))), "image: "+image+"\n")
	assert.YAMLEq(t, "[{name: prebind, image: \""+image+"\"}]", chart.Annotations["artifacthub.io/images"])
	assert.Equal(t, "false", chart.Annotations["artifacthub.io/prerelease"])
	var changes []struct{ Kind, Description string }
	require.NoError(t, yaml.Unmarshal([]byte(chart.Annotations["artifacthub.io/changes"]), &changes))
	require.Len(t, changes, 2)
	assert.Equal(t, "added", changes[0].Kind)
	assert.Equal(t, "It's another.", changes[1].Description)

	own := "sha256:" + strings.Repeat("1", 64)
	cases := map[string]struct{ reason, value, image string }{
		"Default":    {reason: "a tag can move", value: "replicas=3", image: image},
		"Repository": {reason: "an image that users built has another digest", value: "image.repository=example.com/prebind", image: "example.com/prebind:v99.0.0"},
		"Tag":        {reason: "another version has another digest", value: "image.tag=v1.2.4", image: "ghcr.io/prebind/prebind:v1.2.4"},
		"Digest":     {reason: "users can pin another image", value: "image.digest=" + own, image: "ghcr.io/prebind/prebind@" + own},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			rendered := helm("template", "prebind", path, "--kube-version=1.37.0", "--set="+tc.value)
			images := regexp.MustCompile(`(?m)^ +image: (.+)$`).FindAllStringSubmatch(rendered, -1)
			require.Len(t, images, 2, "the Deployment and the Job of the removal")
			assert.Equal(t, tc.image, images[0][1], tc.reason)
			assert.Equal(t, tc.image, images[1][1], tc.reason)
		})
	}
}

// Every rejection happens before the first compilation.
func TestRelease_Refuses(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason, version string
		change          func(t *testing.T, dir string)
		fails           string
	}{
		"NoV":     {reason: "tags of Go modules have a v", version: "1.2.3", fails: "must look like v1.2.3"},
		"Short":   {reason: "the chart needs three numbers", version: "v1.2", fails: "must look like v1.2.3"},
		"Build":   {reason: "+ is not allowed in the tag of an image", version: "v1.2.3+build", fails: "must look like v1.2.3"},
		"Commit":  {reason: "git describe without a tag is the default of make", version: "79e1443", fails: "run make with VERSION=v1.2.3"},
		"Unknown": {reason: "the changelog describes every release", version: "v9.0.0", fails: `no section "## 9.0.0 - YYYY-MM-DD"`},
		"Prefix":  {reason: "99.0.0-rc.1 is not 99.0.0", version: "v99.0.0-rc.1", fails: "no section"},
		"NotClean": {reason: "a file that is not committed can change the result", version: current, fails: "commit or stash", change: func(t *testing.T, dir string) {
			t.Helper()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "new"), nil, 0o600))
		}},
		"OtherTag": {reason: "the tag is the source of the release", version: current, fails: "check out the tag", change: func(t *testing.T, dir string) {
			t.Helper()
			require.NoError(t, git(t.Context(), dir, "commit", "--quiet", "--allow-empty", "--message=Later"))
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			dir, err := checkout()
			require.NoError(t, err)
			if tc.change != nil {
				dir = ownCheckout(t)
				tc.change(t, dir)
			}
			out := filepath.Join(t.TempDir(), "release")
			require.ErrorContains(t, makeRelease(t.Context(), dir, tc.version, out), tc.fails, tc.reason)
			assert.NoDirExists(t, filepath.Join(out+".stage", "linux-"+runtime.GOARCH))
		})
	}
}

// Another directory, time, time zone, language, file mask and settings of Go give the same bytes. The workflow release also uses
// an empty build cache, and all platforms.
func TestRelease_IsReproducible(t *testing.T) {
	t.Parallel()
	first := sumsOf(t, releaseOf(t, next))
	out := filepath.Join(scratch, "again")
	// As go env -w writes it.
	settings := filepath.Join(t.TempDir(), "env")
	require.NoError(t, os.WriteFile(settings, []byte("GOFLAGS=-gcflags=-N\n"), 0o600))
	require.NoError(t, makeRelease(t.Context(), ownCheckout(t), next, out,
		"TZ=Pacific/Auckland", "LC_ALL=C", "MASK=077", "GOAMD64=v3", "GOENV="+settings, "GOTOOLCHAIN=local"))
	assert.NotEmpty(t, first)
	assert.Equal(t, first, sumsOf(t, out))
}

// A release is built with the toolchain of go.mod and not with a newer Go of this machine, whose bytes differ.
func TestRelease_UsesToolchainOfGoMod(t *testing.T) {
	t.Parallel()
	dir := ownCheckout(t)
	path := filepath.Join(dir, "go.mod")
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	line := regexp.MustCompile(`(?m)^toolchain go1\.\d+\.\d+$`)
	require.Regexp(t, line, string(content))
	// Go does not find this version, because it cannot download it.
	require.NoError(t, os.WriteFile(path, line.ReplaceAll(content, []byte("toolchain go1.26.999")), 0o600))
	require.NoError(t, git(t.Context(), dir, "commit", "--quiet", "--all", "--message=Toolchain"))
	err = makeRelease(t.Context(), dir, next, filepath.Join(scratch, "none"), "GOPROXY=off", "GOTOOLCHAIN=local")
	require.ErrorContains(t, err, "go1.26.999")
}

// sumsOf returns the checksums of the files by their name.
func sumsOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	all := map[string]string{}
	for _, e := range entries {
		all[e.Name()] = sumOf(read(t, filepath.Join(dir, e.Name())))
	}
	return all
}
