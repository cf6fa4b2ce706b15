// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command licenses prints the license and notice files of Go and of all modules that are linked into prebind. The licenses require that
// binaries come with these texts. It fails for a module without a license file, and for a text that is not a known permissive license.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// accepted are the licenses that Prebind accepts, as SPDX identifiers.
var accepted = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT"}

// covered is the least part of a text, in percent, that must be a license. The rest is headings and names of authors.
const covered = 75

var (
	license = regexp.MustCompile(`(?i)^(licen[sc]e|copying)`)
	notice  = regexp.MustCompile(`(?i)^notice`)
)

// identify returns the licenses in the text.
func identify(text []byte) ([]string, error) {
	found := licensecheck.Scan(text)
	var ids []string
	for _, m := range found.Match {
		if m.IsURL {
			continue
		}
		if !slices.Contains(accepted, m.ID) {
			return nil, fmt.Errorf("the license %s is not one of %s: remove the module", m.ID, strings.Join(accepted, ", "))
		}
		ids = append(ids, m.ID)
	}
	if len(ids) == 0 || found.Percent < covered {
		return nil, fmt.Errorf("%.0f%% of the text is a known license, want %d%%: read it, and remove the module if it has other terms", found.Percent, covered)
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// component is a module, or Go itself.
type component struct{ Path, Version, Dir string }

// components returns the modules with a package that is linked into a program, sorted by path, after Go.
func components(ctx context.Context) ([]component, error) {
	const modules = "{{with .Module}}{{if not .Main}}{{.Path}}\t{{.Version}}\t{{.Dir}}{{end}}{{end}}"
	linked, err := output(ctx, "list", "-deps", "-tags=grpcnotrace", "-f", modules, "./cmd/prebind", "./cmd/kubectl-prebind")
	if err != nil {
		return nil, err
	}
	root, err := output(ctx, "env", "GOROOT", "GOVERSION")
	if err != nil {
		return nil, err
	}
	all := []component{{Path: "Go", Version: strings.TrimPrefix(root[1], "go"), Dir: root[0]}}
	for _, line := range slices.Compact(slices.Sorted(slices.Values(linked))) {
		if parts := strings.Split(line, "\t"); len(parts) == 3 {
			all = append(all, component{Path: parts[0], Version: parts[1], Dir: parts[2]})
		}
	}
	return all, nil
}

// output returns the lines that the go command prints.
func output(ctx context.Context, args ...string) ([]string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", cmd, err, &stderr)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n"), nil
}

func run(ctx context.Context, to io.Writer) error {
	all, err := components(ctx)
	if err != nil {
		return err
	}
	var text strings.Builder
	var problems []error
	fmt.Fprintf(&text, "prebind contains Go and %d Go modules under these licenses.\n", len(all)-1)
	for _, c := range all {
		if err := describe(&text, c); err != nil {
			problems = append(problems, fmt.Errorf("%s %s: %w", c.Path, c.Version, err))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	_, err = io.WriteString(to, text.String())
	return err
}

// describe writes the license and the notice of the component.
func describe(to io.Writer, c component) error {
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		return err
	}
	var ids, texts []string
	for _, e := range entries {
		isLicense := license.MatchString(e.Name())
		if e.IsDir() || !isLicense && !notice.MatchString(e.Name()) {
			continue
		}
		content, err := os.ReadFile(filepath.Join(c.Dir, e.Name()))
		if err != nil {
			return err
		}
		texts = append(texts, strings.TrimSpace(string(content)))
		if !isLicense {
			continue
		}
		these, err := identify(content)
		if err != nil {
			return fmt.Errorf("%s: %w", e.Name(), err)
		}
		ids = append(ids, these...)
	}
	if len(ids) == 0 {
		return errors.New("no license file")
	}
	fmt.Fprintf(to, "\n%s\n%s %s: %s\n\n%s\n", strings.Repeat("=", 80), c.Path, c.Version, strings.Join(ids, " and "), strings.Join(texts, "\n\n"))
	return nil
}
