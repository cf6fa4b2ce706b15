// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/semver"
)

// version is a semantic version with a leading v, such as v1.2.3.
type version string

// parseVersion returns an error for versions that cannot be the tag of a release.
func parseVersion(text string) (version, error) {
	if !semver.IsValid(text) || semver.Canonical(text) != text || semver.Build(text) != "" {
		return "", fmt.Errorf("version %q: must be a semantic version with a leading v, such as v1.2.3 or v1.2.3-rc.1: run make with VERSION=v1.2.3", text)
	}
	return version(text), nil
}

// number returns the version without v, for the chart and the changelog.
func (v version) number() string { return strings.TrimPrefix(string(v), "v") }

func (v version) prerelease() bool { return semver.Prerelease(string(v)) != "" }

// source describes the commit of a release.
type source struct {
	version version
	commit  string
	// time is the time of all files.
	time    time.Time
	root    string
	changes section
}

// check returns the source of a release. It returns an error if the checkout at root has changes, if the chart contains files that git
// ignores, if the tag of the version exists at another commit, or if the changelog does not describe the version.
func check(ctx context.Context, root string, v version) (source, error) {
	changes, err := changesOf(root, v)
	if err != nil {
		return source{}, err
	}
	status, err := git(ctx, root, "status", "--porcelain")
	if err != nil {
		return source{}, err
	}
	if status != "" {
		return source{}, fmt.Errorf("the working tree has changes: commit or stash them:\n%s", status)
	}
	ignored, err := git(ctx, root, "ls-files", "--others", "--ignored", "--exclude-standard", "--", "charts")
	if err != nil {
		return source{}, err
	}
	if ignored != "" {
		return source{}, fmt.Errorf("git ignores these files, but the chart would contain them: delete them:\n%s", ignored)
	}
	commit, err := git(ctx, root, "rev-parse", "HEAD")
	if err != nil {
		return source{}, err
	}
	if tagged, err := git(ctx, root, "rev-parse", "--verify", "--quiet", "refs/tags/"+string(v)+"^{commit}"); err == nil && tagged != commit {
		return source{}, fmt.Errorf("the tag %s is commit %.12s, not HEAD (%.12s): check out the tag, or choose another version", v, tagged, commit)
	}
	at, err := timeOf(ctx, root)
	return source{version: v, commit: commit, time: at, root: root, changes: changes}, err
}

// timeOf returns SOURCE_DATE_EPOCH, or the time of the commit.
func timeOf(ctx context.Context, root string) (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		var err error
		if text, err = git(ctx, root, "log", "-1", "--format=%ct"); err != nil {
			return time.Time{}, err
		}
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: must be a number of seconds, got %q", text)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

func git(ctx context.Context, root string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = root
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// section is the part of the changelog for one version. Its links are absolute, and each entry is one line: GitHub shows a line
// break in a release as <br>.
type section struct {
	// text is the section without its heading, and a link to the installation.
	text string
	// changes are the entries in order.
	changes []change
}

// change is an entry of the changelog.
type change struct {
	// Kind is the lower-case heading: added, changed, deprecated, removed, fixed or security.
	Kind        string `json:"kind"`
	Description string `json:"description"`
}

// changesOf returns the section of CHANGELOG.md for the version. Its heading contains the date of the release.
func changesOf(root string, v version) (section, error) {
	content, err := os.ReadFile(filepath.Join(root, "CHANGELOG.md"))
	if err != nil {
		return section{}, err
	}
	heading := regexp.MustCompile(`(?m)^## ` + regexp.QuoteMeta(v.number()) + ` - \d{4}-\d{2}-\d{2}\n`)
	at := heading.FindIndex(content)
	if at == nil {
		return section{}, fmt.Errorf("CHANGELOG.md: no section \"## %s - YYYY-MM-DD\": move the entries below \"## Unreleased\" to a section with this heading", v.number())
	}
	text, _, _ := strings.Cut(string(content[at[1]:]), "\n## ")
	text = absolute(unwrap(strings.TrimSpace(text)), v)
	s := section{text: fmt.Sprintf("%s\n\n[Install Prebind %s](%s/docs/install.md)\n", text, v, filesAt(v))}
	kind := ""
	for line := range strings.SplitSeq(text, "\n") {
		if name, ok := strings.CutPrefix(line, "### "); ok {
			kind = strings.ToLower(name)
		} else if entry, ok := strings.CutPrefix(line, "- "); ok {
			s.changes = append(s.changes, change{Kind: kind, Description: entry})
		}
	}
	if len(s.changes) == 0 {
		return section{}, fmt.Errorf("CHANGELOG.md: the section of %s has no entries: describe the changes for users", v.number())
	}
	return s, nil
}

// filesAt returns the address of the files of the repository at the tag of the version.
func filesAt(v version) string { return project + "/blob/" + string(v) }

// wrapped is a line break in an entry of a list or in a paragraph. Headings, entries and rows of tables begin a line.
var wrapped = regexp.MustCompile(`(\S)\n *([^\s#|-]|-\S)`)

// unwrap joins the lines of each entry and paragraph.
func unwrap(text string) string { return wrapped.ReplaceAllString(text, "$1 $2") }

// relative is a link to a file of the repository.
var relative = regexp.MustCompile(`\]\(([\w./-]+(?:#[\w-]+)?)\)`)

// absolute makes links to files of the repository absolute, at the tag of the version.
func absolute(text string, v version) string {
	return relative.ReplaceAllString(text, "]("+filesAt(v)+"/$1)")
}
