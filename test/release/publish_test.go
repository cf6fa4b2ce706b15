// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package release_test

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// publisher publishes a release from a checkout at its tag, to a registry and a GitHub of its own.
type publisher struct {
	checkout, release string
	registry          string
	// bin contains a program gh, the arguments of its calls, and whether the release on GitHub is a draft.
	bin string
	// config contains the credentials for the registry.
	config string
	// private is true if reading from the registry needs credentials.
	private atomic.Bool
	writes  atomic.Int32
}

const fakeGH = `#!/bin/sh
dir=$(dirname "$0")
echo "$@" >>"$dir/calls"
case "$*" in
"release view"*) cat "$dir/draft" 2>/dev/null || { echo "release not found" >&2; exit 1; } ;;
"release create"*) test ! -e "$dir/denied" && echo true >"$dir/draft" ;;
"release edit"*) echo false >"$dir/draft" ;;
esac
`

func newPublisher(t *testing.T) *publisher {
	t.Helper()
	dir := t.TempDir()
	p := &publisher{release: filepath.Join(dir, "release"), bin: filepath.Join(dir, "bin"), config: filepath.Join(dir, "config")}
	var err error
	p.checkout, err = checkout()
	require.NoError(t, err)
	require.NoError(t, os.CopyFS(p.release, os.DirFS(releaseOf(t, current))))
	for _, d := range []string{p.bin, p.config} {
		require.NoError(t, os.Mkdir(d, 0o755))
	}
	require.NoError(t, os.WriteFile(filepath.Join(p.bin, "gh"), []byte(fakeGH), 0o755)) //nolint:gosec // It is a program.

	server := httptest.NewServer(p.behind(startRegistry(t)))
	t.Cleanup(server.Close)
	address := strings.Replace(strings.TrimPrefix(server.URL, "http://"), "127.0.0.1", "localhost", 1)
	p.registry = address + "/prebind"
	auth := fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, address, base64.StdEncoding.EncodeToString([]byte("user:password")))
	require.NoError(t, os.WriteFile(filepath.Join(p.config, "config.json"), []byte(auth), 0o600))
	return p
}

// startRegistry starts a registry, and returns its address.
func startRegistry(t *testing.T) string {
	t.Helper()
	cmd := tool(t, "crane", "registry", "serve", "--address=localhost:0")
	log, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() }) // The end of the context of the test kills it.
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		if port := regexp.MustCompile(`serving on port (\d+)`).FindStringSubmatch(lines.Text()); port != nil {
			go func() { _, _ = io.Copy(io.Discard, log) }() // The registry would wait for a reader of its log.
			return "localhost:" + port[1]
		}
	}
	require.Fail(t, "the registry did not start")
	return ""
}

// behind returns a handler that forwards the requests.
func (p *publisher) behind(registry string) http.Handler {
	forward := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: registry})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, _, ok := r.BasicAuth(); !ok && p.private.Load() {
			w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			p.writes.Add(1)
		}
		forward.ServeHTTP(w, r)
	})
}

func (p *publisher) publish(t *testing.T) error {
	t.Helper()
	return runMake(t.Context(), p.checkout, "publish", current, p.release,
		"PATH="+p.bin+string(os.PathListSeparator)+os.Getenv("PATH"), "DOCKER_CONFIG="+p.config, "REGISTRY="+p.registry, "PLAIN_HTTP=true")
}

// lastCall returns the arguments of the last call of gh, or nothing.
func (p *publisher) lastCall(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(p.bin, "calls"))
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	return lines[len(lines)-1]
}

// run runs a tool with the credentials.
func (p *publisher) run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := tool(t, name, args...)
	cmd.Env = append(os.Environ(), "DOCKER_CONFIG="+p.config)
	out, err := cmd.Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
}

// assertNothingWritten checks that a rejection happened before the first write.
func (p *publisher) assertNothingWritten(t *testing.T) {
	t.Helper()
	assert.Zero(t, p.writes.Load(), "nothing should be pushed")
	assert.NotContains(t, p.lastCall(t), "release upload")
}

// The registry and GitHub have the release after the last step only, and a published version never changes.
func TestPublish(t *testing.T) {
	t.Parallel()
	p := newPublisher(t)
	p.private.Store(true)
	require.ErrorContains(t, p.publish(t), "https://github.com/orgs/prebind/packages", "GitHub creates private packages")
	assert.Equal(t, "true\n", string(read(t, filepath.Join(p.bin, "draft"))), "users do not see a release whose image they cannot pull")

	p.private.Store(false)
	require.NoError(t, p.publish(t), "the same command works after the change")
	assert.Equal(t, "release edit v99.0.0 --draft=false", p.lastCall(t))
	calls := string(read(t, filepath.Join(p.bin, "calls")))
	assert.Contains(t, calls, "release create v99.0.0 --draft --verify-tag --title=v99.0.0 --prerelease=false --notes-file="+p.release+"/release-notes.md\n")
	assert.Regexp(t, `release upload v99.0.0 --clobber .*SHA256SUMS.* install.yaml .*prebind-v99.0.0-linux-arm64.tar.gz`, calls)
	digest := p.run(t, "oras", "resolve", p.registry+"/prebind:"+current)
	assert.Contains(t, string(read(t, filepath.Join(p.release, "install.yaml"))), "ghcr.io/prebind/prebind:v99.0.0@"+digest+"\n")
	p.run(t, "crane", "validate", "--remote="+p.registry+"/prebind:"+current)
	pulled := t.TempDir()
	p.run(t, "helm", "pull", "oci://"+p.registry+"/charts/prebind", "--version=99.0.0", "--plain-http", "--destination="+pulled)
	assert.Equal(t, sumOf(read(t, filepath.Join(p.release, "prebind-99.0.0.tgz"))), sumOf(read(t, filepath.Join(pulled, "prebind-99.0.0.tgz"))))
	p.run(t, "oras", "manifest", "fetch", p.registry+"/charts/prebind:artifacthub.io")

	chart := p.run(t, "oras", "resolve", p.registry+"/charts/prebind:99.0.0")
	require.NoError(t, os.Remove(filepath.Join(p.bin, "draft")))
	require.NoError(t, p.publish(t), "a repetition after a failure of gh pushes the same")
	assert.Equal(t, chart, p.run(t, "oras", "resolve", p.registry+"/charts/prebind:99.0.0"))

	p.writes.Store(0)
	require.ErrorContains(t, p.publish(t), "the release v99.0.0 on GitHub is published")
	require.NoError(t, os.Remove(filepath.Join(p.bin, "draft")))
	p.run(t, "helm", "package", "charts/prebind", "--version=99.0.0", "--destination="+p.release)
	p.sum(t)
	require.ErrorContains(t, p.publish(t), "charts/prebind:99.0.0 is published with other content: a published version never changes")
	p.assertNothingWritten(t)
	p.run(t, "crane", "copy", p.registry+"/charts/prebind:artifacthub.io", p.registry+"/prebind:"+current)
	p.writes.Store(0)
	require.ErrorContains(t, p.publish(t), "/prebind:v99.0.0 is published with other content")
	p.assertNothingWritten(t)
}

// sum writes the checksums of changed files.
func (p *publisher) sum(t *testing.T) {
	t.Helper()
	var lines strings.Builder
	sums := sumsOf(t, p.release)
	delete(sums, "SHA256SUMS")
	for name, sum := range sums {
		fmt.Fprintf(&lines, "%s  %s\n", sum, name)
	}
	require.NoError(t, os.WriteFile(filepath.Join(p.release, "SHA256SUMS"), []byte(lines.String()), 0o600))
}

func TestPublish_Refuses(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		change func(t *testing.T, p *publisher)
		fails  string
	}{
		"Changed": {reason: "users compare the checksums", fails: "was changed: run make release", change: func(t *testing.T, p *publisher) {
			t.Helper()
			require.NoError(t, os.WriteFile(filepath.Join(p.release, "install.yaml"), nil, 0o600))
		}},
		"Platform": {reason: "a release is for all users", fails: "linux/arm64 is missing: run make release without PLATFORMS", change: func(t *testing.T, p *publisher) {
			t.Helper()
			require.NoError(t, os.Remove(filepath.Join(p.release, "prebind-v99.0.0-linux-arm64.tar.gz")))
			p.sum(t)
		}},
		"NoTag": {reason: "the release on GitHub belongs to a tag", fails: "git tag -s v99.0.0", change: func(t *testing.T, p *publisher) {
			t.Helper()
			p.checkout = ownCheckout(t)
			require.NoError(t, git(t.Context(), p.checkout, "tag", "--delete", current))
		}},
		"OtherCommit": {reason: "the files are from another commit than the tag", fails: "check out the tag and run make release", change: func(t *testing.T, p *publisher) {
			t.Helper()
			p.checkout = ownCheckout(t)
			require.NoError(t, git(t.Context(), p.checkout, "commit", "--quiet", "--allow-empty", "--message=Later"))
			require.NoError(t, git(t.Context(), p.checkout, "tag", "--force", current))
		}},
		"NoAnswer": {reason: "the registry could have other content", fails: "reading localhost:1/prebind/prebind:v99.0.0", change: func(_ *testing.T, p *publisher) {
			p.registry = "localhost:1/prebind"
		}},
		"NoPermission": {reason: "the release on GitHub could not be created later", fails: "Error", change: func(t *testing.T, p *publisher) {
			t.Helper()
			require.NoError(t, os.WriteFile(filepath.Join(p.bin, "denied"), nil, 0o600))
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p := newPublisher(t)
			tc.change(t, p)
			require.ErrorContains(t, p.publish(t), tc.fails, tc.reason)
			p.assertNothingWritten(t)
		})
	}
}
