// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fakeGH puts a program gh into the PATH. It knows the tag of the commit, and fails for the command in fails. The file contains the
// arguments of each call.
func fakeGH(t *testing.T, commit, fails string) (calls string) {
	t.Helper()
	bin := t.TempDir()
	calls = filepath.Join(bin, "calls")
	script := fmt.Sprintf(`#!/bin/sh
echo "$@" >>%s
case "$*" in
"%s"*) echo "refused" >&2; exit 1 ;;
api*/prebind/prebind/commits/tags/v1.2.3) echo %s ;;
esac
`, calls, fails, commit)
	require.NoError(t, write(bin, file{"gh", 0o755, []byte(script)}))
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	return calls
}

// publishTo publishes to a registry, and returns the release that gh creates.
func publishTo(t *testing.T, server *httptest.Server, root, out string) (registryName, created string, err error) {
	t.Helper()
	commit, err := git(t.Context(), root, "rev-parse", "HEAD")
	require.NoError(t, err)
	return publishWith(t, server, root, out, fakeGH(t, commit, "none"))
}

func publishWith(t *testing.T, server *httptest.Server, root, out, calls string) (registryName, created string, err error) {
	t.Helper()
	address := strings.TrimPrefix(server.URL, "http://")
	// For registries that require credentials.
	auth := fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, address, base64.StdEncoding.EncodeToString([]byte("user:password")))
	config := t.TempDir()
	require.NoError(t, write(config, file{"config.json", 0o644, []byte(auth)}))
	t.Setenv("DOCKER_CONFIG", config)
	registryName = address + "/prebind"
	err = publish(t.Context(), tested, publication{root: root, dir: out, registry: registryName, github: true, out: t.Output()})
	return registryName, lastRelease(t, calls), err
}

// lastRelease returns the arguments with which gh created a release, or nothing.
func lastRelease(t *testing.T, calls string) string {
	t.Helper()
	content, err := os.ReadFile(calls)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	if last := lines[len(lines)-1]; strings.HasPrefix(last, "release ") {
		return last
	}
	return ""
}

func newRegistry(t *testing.T) *httptest.Server {
	t.Helper()
	return newRegistryBehind(t, func(registry http.Handler) http.Handler { return registry })
}

func newRegistryBehind(t *testing.T, filter func(http.Handler) http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(filter(registry.New(registry.Logger(log.New(t.Output(), "", 0)))))
	t.Cleanup(server.Close)
	return server
}

// After the publication, the registry contains the image of the manifests and a chart that Helm can pull.
func TestPublish(t *testing.T) {
	root, out := assembled(t)
	server := newRegistry(t)
	registryName, gh, err := publishTo(t, server, root, out)
	require.NoError(t, err)

	manifest, err := os.ReadFile(filepath.Join(out, "install.yaml"))
	require.NoError(t, err)
	pinned := strings.TrimPrefix(strings.TrimSpace(string(manifest)), "image: ghcr.io/prebind/prebind:v1.2.3@")
	ref, err := name.ParseReference(registryName + "/prebind@" + pinned)
	require.NoError(t, err)
	index, err := remote.Index(ref)
	require.NoError(t, err, "install.yaml refers to the pushed image")
	require.NoError(t, validate.Index(index))
	images, err := index.IndexManifest()
	require.NoError(t, err)
	require.Len(t, images.Manifests, 2, "Linux only")
	for _, d := range images.Manifests {
		image, err := index.Image(d.Digest)
		require.NoError(t, err)
		assertImage(t, image, *d.Platform)
	}

	tag, err := name.NewTag(registryName + "/prebind:v1.2.3")
	require.NoError(t, err)
	head, err := remote.Head(tag)
	require.NoError(t, err)
	assert.Equal(t, pinned, head.Digest.String(), "the tag is the digest of install.yaml")

	pulled := t.TempDir()
	helm(t, "pull", "oci://"+registryName+"/charts/prebind", "--version=1.2.3", "--plain-http", "--destination="+pulled)
	want, err := os.ReadFile(filepath.Join(out, "prebind-1.2.3.tgz"))
	require.NoError(t, err)
	got, err := os.ReadFile(filepath.Join(pulled, "prebind-1.2.3.tgz"))
	require.NoError(t, err)
	assert.True(t, bytes.Equal(want, got), "helm pull gives the chart of the release")
	assertChart(t, filepath.Join(pulled, "prebind-1.2.3.tgz"), "ghcr.io/prebind/prebind:v1.2.3@"+pinned)
	hub, err := name.ParseReference(registryName + "/charts/prebind:artifacthub.io")
	require.NoError(t, err)
	metadata, err := remote.Image(hub)
	require.NoError(t, err)
	assert.NoError(t, validate.Image(metadata))

	assert.Contains(t, gh, "release create v1.2.3 --repo=github.com/prebind/prebind --verify-tag --title=v1.2.3 --notes-file="+out+"/release-notes.md")
	assert.Contains(t, gh, out+"/SHA256SUMS")
	assert.NotContains(t, gh, "--prerelease")

	_, _, err = publishTo(t, server, root, out)
	assert.NoError(t, err, "a repetition after a failure of gh pushes nothing else")
}

// Every refusal happens before the first write.
func TestPublish_Refuses(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(t *testing.T, root, out string)
		fails  string
	}{
		"Changed": {reason: "users compare the checksums", fails: "install.yaml does not match SHA256SUMS",
			change: func(t *testing.T, _, out string) {
				require.NoError(t, write(out, file{"install.yaml", 0o644, []byte("x")}))
			}},
		"Added": {reason: "a file without a checksum is not from make release", fails: "extra does not match",
			change: func(t *testing.T, _, out string) { require.NoError(t, write(out, file{"extra", 0o644, nil})) }},
		"Missing": {reason: "users need all files", fails: "krew.yaml is missing",
			change: func(t *testing.T, _, out string) { require.NoError(t, os.Remove(filepath.Join(out, "krew.yaml"))) }},
		"NoRelease": {reason: "there is nothing to publish", fails: "run make release",
			change: func(t *testing.T, _, out string) { require.NoError(t, os.RemoveAll(out)) }},
		"NoTag": {reason: "the release on GitHub belongs to a tag", fails: "git tag -s v1.2.3",
			change: func(t *testing.T, root, _ string) { gitIn(t, root, "tag", "--delete", "v1.2.3") }},
		"OtherCommit": {reason: "the files are from another commit than the tag", fails: "check out the tag and run make release",
			change: func(t *testing.T, root, _ string) {
				require.NoError(t, write(root, file{"new", 0o644, nil}))
				commitIn(t, root)
				gitIn(t, root, "tag", "--force", "v1.2.3")
			}},
		"Platform": {reason: "the release on GitHub is for all users", fails: "prebind-v1.2.3-darwin-amd64.tar.gz is missing: run make release without PLATFORMS",
			change: func(t *testing.T, root, out string) {
				require.NoError(t, os.RemoveAll(out))
				s, err := check(t.Context(), root, tested)
				require.NoError(t, err)
				stage := stageOf(t)
				require.NoError(t, os.RemoveAll(filepath.Join(stage, "darwin-amd64")))
				require.NoError(t, assemble(s, stage, out))
			}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			root, out := assembled(t)
			tc.change(t, root, out)
			server := newRegistry(t)
			registryName, gh, err := publishTo(t, server, root, out)
			require.ErrorContains(t, err, tc.fails, tc.reason)
			assert.Empty(t, gh)
			assertEmpty(t, registryName)
		})
	}
}

// publish would push the image and the chart, and then find out that it cannot create the release.
func TestPublish_RefusesWithoutGitHub(t *testing.T) {
	root, out := assembled(t)
	commit, err := git(t.Context(), root, "rev-parse", "HEAD")
	require.NoError(t, err)
	cases := map[string]struct{ reason, commit, refused, fails string }{
		"NoCredentials": {reason: "gh needs credentials", commit: commit, refused: "auth status", fails: "run gh auth login"},
		"NoTag":         {reason: "the tag is not pushed", commit: commit, refused: "api", fails: "run git push origin v1.2.3 client/v1.2.3"},
		"OtherTag":      {reason: "the pushed tag is another commit", commit: "1234567890ab", refused: "none", fails: "is commit 1234567890ab, but here it is " + commit[:12]},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			registryName, created, err := publishWith(t, newRegistry(t), root, out, fakeGH(t, tc.commit, tc.refused))
			require.ErrorContains(t, err, tc.fails, tc.reason)
			assert.Empty(t, created)
			assertEmpty(t, registryName)
		})
	}
}

// A registry of a user never leads to a release on GitHub, and does not need gh.
func TestPublish_OtherRegistry(t *testing.T) {
	root, out := assembled(t)
	t.Chdir(root)
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	calls := fakeGH(t, "", "")
	registryName := strings.TrimPrefix(newRegistry(t).URL, "http://") + "/own"
	var output bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"publish", "--version=v1.2.3", "--out=" + out, "--registry=" + registryName}, &output))
	assert.NoFileExists(t, calls, "gh was called")
	assert.Contains(t, output.String(), "no release on GitHub")
	tag, err := name.NewTag(registryName + "/prebind:v1.2.3")
	require.NoError(t, err)
	_, err = remote.Head(tag)
	assert.NoError(t, err)
}

// New packages of GitHub are private: the release would refer to an image that users cannot pull.
func TestPublish_RefusesPrivatePackages(t *testing.T) {
	root, out := assembled(t)
	commit, err := git(t.Context(), root, "rev-parse", "HEAD")
	require.NoError(t, err)
	public := false
	server := newRegistryBehind(t, func(registry http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, _, ok := r.BasicAuth(); !ok && !public {
				w.Header().Set("WWW-Authenticate", "Basic")
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			registry.ServeHTTP(w, r)
		})
	})
	calls := fakeGH(t, commit, "none")
	_, created, err := publishWith(t, server, root, out, calls)
	require.ErrorContains(t, err, "https://github.com/orgs/prebind/packages/container/prebind/settings")
	require.ErrorContains(t, err, "https://github.com/orgs/prebind/packages/container/charts%2Fprebind/settings")
	require.ErrorContains(t, err, "run make publish again")
	assert.Empty(t, created)

	public = true
	_, created, err = publishWith(t, server, root, out, calls)
	require.NoError(t, err, "the same command works after the change")
	assert.Contains(t, created, "release create")
}

// Registries differ in their answer for a repository that does not exist.
func TestPublish_CreatesRepository(t *testing.T) {
	root, out := assembled(t)
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			var asked sync.Map
			server := newRegistryBehind(t, func(registry http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Method == http.MethodHead && strings.HasSuffix(r.URL.Path, "1.2.3") {
						if _, again := asked.LoadOrStore(r.URL.Path, true); !again {
							w.WriteHeader(status)
							return
						}
					}
					registry.ServeHTTP(w, r)
				})
			})
			_, created, err := publishTo(t, server, root, out)
			require.NoError(t, err)
			assert.NotEmpty(t, created)
		})
	}
}

func TestPublish_ReportsMissingPermission(t *testing.T) {
	root, out := assembled(t)
	server := newRegistryBehind(t, func(registry http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v2/" {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			registry.ServeHTTP(w, r)
		})
	})
	_, created, err := publishTo(t, server, root, out)
	require.ErrorContains(t, err, "a token that has the scope write:packages")
	assert.Empty(t, created)
}

// The check for missing platforms uses the default of make release.
func TestPlatforms(t *testing.T) {
	makefile, err := os.ReadFile("../Makefile")
	require.NoError(t, err)
	var all []string
	for _, p := range platforms {
		all = append(all, p.os+"/"+p.arch)
	}
	assert.Contains(t, string(makefile), "\nPLATFORMS ?= "+strings.Join(all, " ")+"\n")
}

// A version that is in the registry with other content is never replaced.
func TestPublish_KeepsPublishedVersion(t *testing.T) {
	root, out := assembled(t)
	server := newRegistry(t)
	_, _, err := publishTo(t, server, root, out)
	require.NoError(t, err)
	t.Setenv("SOURCE_DATE_EPOCH", "1")
	s, err := check(t.Context(), root, tested)
	require.NoError(t, err)
	other := t.TempDir()
	require.NoError(t, assemble(s, stageOf(t), other))
	_, gh, err := publishTo(t, server, root, other)
	require.ErrorContains(t, err, "a published version never changes")
	assert.Empty(t, gh)
}

func assertEmpty(t *testing.T, registryName string) {
	t.Helper()
	r, err := name.NewRegistry(strings.TrimSuffix(registryName, "/prebind"))
	require.NoError(t, err)
	repositories, err := remote.Catalog(context.WithoutCancel(t.Context()), r)
	require.NoError(t, err)
	assert.Empty(t, repositories, "nothing should be pushed")
}
