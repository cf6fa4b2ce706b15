// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"testing"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDescribe(t *testing.T) {
	info := &debug.BuildInfo{
		GoVersion: "go1.26.8",
		Main:      debug.Module{Path: "github.com/prebind/prebind", Version: "(devel)"},
		Deps: []*debug.Module{
			{Path: "k8s.io/api", Version: "v0.36.3", Sum: "h1:b="},
			{Path: "example.com/a", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/fork", Version: "v1.0.1", Sum: "h1:c="}},
		},
		Settings: []debug.BuildSetting{{Key: "GOARCH", Value: "arm64"}, {Key: "-ldflags", Value: "-X /home/me"}},
	}
	bom, err := describe(info, "v1.2.3")
	require.NoError(t, err)
	program := bom.Metadata.Component
	assert.Equal(t, "pkg:golang/github.com/prebind/prebind@v1.2.3", program.PackageURL, "the release's version, for Go knows none")
	assert.Equal(t, []cyclonedx.Property{{Name: "go:GOARCH", Value: "arm64"}}, *program.Properties, "nothing of the machine that built it")
	var urls []string
	for _, c := range *bom.Components {
		urls = append(urls, c.PackageURL)
	}
	want := []string{"pkg:golang/example.com/fork@v1.0.1", "pkg:golang/k8s.io/api@v0.36.3", "pkg:golang/std@1.26.8"}
	assert.Equal(t, want, urls, "what is really in it, with the standard library, whose flaws count as well")
	assert.Equal(t, []cyclonedx.Dependency{{Ref: program.BOMRef, Dependencies: &want}}, *bom.Dependencies)

	_, err = describe(&debug.BuildInfo{}, "v1.2.3")
	assert.ErrorContains(t, err, "outside of a module")
}

// A binary of each kind, from the same few lines.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"go.mod":  "module example.com/tiny\ngo 1.26\n",
		"main.go": "package main\n\nimport \"os/user\"\n\nfunc main() { _, _ = user.Current() }\n",
		"text":    "no binary",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	build := func(cgo string) {
		cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", "tiny-"+cgo, ".")
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo, "GOOS=linux", "GOFLAGS=", "GOWORK=off")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	build("0")
	build("1")
	cases := map[string]struct {
		reason string
		args   []string
		says   string
	}{
		"Static":  {reason: "it runs in an image with nothing else", args: []string{filepath.Join(dir, "tiny-0"), "v1"}},
		"Dynamic": {reason: "it would not run there", args: []string{filepath.Join(dir, "tiny-1"), "v1"}, says: "linked dynamically"},
		"Text":    {reason: "it is no binary", args: []string{filepath.Join(dir, "text"), "v1"}, says: "ELF"},
		"None":    {reason: "there is nothing to read", args: []string{filepath.Join(dir, "none"), "v1"}, says: "no such file"},
		"Usage":   {reason: "a version is needed", args: []string{"tiny"}, says: "give a binary and its version"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			err := run(tc.args, &out)
			if tc.says != "" {
				require.ErrorContains(t, err, tc.says, tc.reason)
				assert.Empty(t, out.String())
				return
			}
			require.NoError(t, err, tc.reason)
			var bom cyclonedx.BOM
			require.NoError(t, cyclonedx.NewBOMDecoder(&out, cyclonedx.BOMFileFormatJSON).Decode(&bom))
			assert.Equal(t, "example.com/tiny", bom.Metadata.Component.Name)
			assert.Equal(t, cyclonedx.SpecVersion1_6, bom.SpecVersion)
		})
	}
}
