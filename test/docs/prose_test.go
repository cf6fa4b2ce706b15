// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/binder/framework"
	client "github.com/prebind/prebind/cmd/kubectl-prebind/app"
	"github.com/prebind/prebind/cmd/prebind/app"
	"github.com/prebind/prebind/docs/example/after"
	"github.com/prebind/prebind/internal/certificates"
	"github.com/prebind/prebind/internal/work"
	"github.com/prebind/prebind/webhook"
)

// root is the checkout, as seen from this folder.
const root = "../.."

var (
	fence   = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	code    = regexp.MustCompile("`[^`\n]*`")
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.+?) *$`)
	dropped = regexp.MustCompile(`[^\p{L}\p{N}\- _]`)
	flag    = regexp.MustCompile(`--([a-z][a-z0-9-]+)`)
	metric  = regexp.MustCompile(`\bprebind_[a-z_]+\b`)
)

// filesOf returns the files of the checkout whose names end in this way, by path from its root.
func filesOf(t *testing.T, suffix string) map[string]string {
	t.Helper()
	found := map[string]string{}
	checkout := os.DirFS(root)
	require.NoError(t, fs.WalkDir(checkout, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{".git", "bin"}, name):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(name, suffix):
			return nil
		}
		content, err := fs.ReadFile(checkout, name)
		found[name] = string(content)
		return err
	}))
	require.NotEmpty(t, found)
	return found
}

// pagesOfProse returns all Markdown of the checkout, by path from its root.
func pagesOfProse(t *testing.T) map[string]string {
	t.Helper()
	return filesOf(t, ".md")
}

// anchors are those that a page's headings have where it is shown.
func anchors(page string) []string {
	var all []string
	for _, h := range heading.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		text := regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`).ReplaceAllString(h[1], "$1")
		all = append(all, strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(text), ""), " ", "-"))
	}
	return all
}

// Links in the documentation have targets.
func TestLinks(t *testing.T) {
	t.Parallel()
	pages := pagesOfProse(t)
	for name, page := range pages {
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(fence.ReplaceAllString(page, ""), ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file, anchor, _ := strings.Cut(m[1], "#")
			to := name
			if file != "" {
				to = path.Join(path.Dir(name), file)
			}
			if _, err := fs.Stat(os.DirFS(root), to); err != nil {
				assert.NoError(t, err, "%s links to %s", name, m[1])
			} else if anchor != "" {
				assert.Contains(t, anchors(pages[to]), anchor, "%s links to %s: %s has no such heading", name, m[1], to)
			}
		}
	}
}

// The index names every page, and those of the runbooks, of the reports and of the examples their own.
func TestIndex(t *testing.T) {
	t.Parallel()
	pages := pagesOfProse(t)
	for name := range pages {
		page, ok := strings.CutPrefix(name, "docs/")
		index := "README.md"
		if dir := path.Dir(page); path.Base(page) != index && (dir == "runbooks" || dir == "conformance") {
			index, page = dir+"/"+index, path.Base(page)
		}
		if ok && page != index {
			assert.Contains(t, pages["docs/"+index], "("+page, "docs/%s should name it", index)
		}
	}
	examples, err := fs.Glob(os.DirFS(root), "docs/manifests/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, examples)
	for _, example := range examples {
		assert.Contains(t, pages["docs/manifests/README.md"], "("+path.Base(example)+")", "docs/manifests/README.md should name it")
	}
}

// flagsOfOthers are flags of other programs that the documentation shows.
var flagsOfOthers = strings.Fields(`
	action admission-control-config-file all annotations atomic branch build-arg check clusterrole controllers create-namespace dir direction dry-run
	egress-selector-mode election-timeout enable-aggregator-routing exposed-node-labels field-manager field-selector filter for force force-conflicts format from-file group-id help
	ignore-missing ignore-not-found image install list max-concurrent-reconciles max-mutating-requests-inflight name network no-hooks output overrides platform port prefix previous
	protocol prune push query raw ref remote-name-all replicas repo resource reuse-values rules schedule-csi-storage server-side serviceaccount set set-json show-labels show-managed-fields sort-by
	source-group source-ranges subnet-ids subresource tail take-ownership target-tags timeout type untar untardir values verb version watch`)

// A flag that the documentation names is there.
func TestFlags(t *testing.T) {
	t.Parallel()
	known := slices.Clone(flagsOfOthers)
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(app.NewCommand(app.WithPlugin(after.Registration())))
	visit(client.NewCommand())
	pages := pagesOfProse(t)
	maps.DeleteFunc(pages, func(name, _ string) bool { return strings.HasPrefix(name, "docs/conformance/") }) // Reports show flags of schedulers.
	for name, page := range pages {
		for _, m := range flag.FindAllStringSubmatch(page, -1) {
			assert.Contains(t, known, m[1], "%s names --%s", name, m[1])
		}
	}
}

// A metric that the documentation names is there. The changelog also names removed ones.
func TestMetricNames(t *testing.T) {
	t.Parallel()
	pages := pagesOfProse(t)
	delete(pages, "CHANGELOG.md")
	for name, page := range pages {
		for _, m := range metric.FindAllString(page, -1) {
			m = strings.TrimSuffix(m, "_bucket")
			assert.Contains(t, pages["docs/metrics.md"], "- `"+m+"` (", "%s names %s", name, m)
		}
	}
}

// rulesOf returns the rules of the roles in the file of config/webhook.
func rulesOf(t *testing.T, file string) []rbacv1.PolicyRule {
	t.Helper()
	content, err := os.ReadFile(path.Join(root, "config/webhook", file))
	require.NoError(t, err)
	var rules []rbacv1.PolicyRule
	for document := range strings.SplitSeq(string(content), "\n---\n") {
		var role rbacv1.ClusterRole // A Role has the same fields.
		require.NoError(t, yaml.Unmarshal([]byte(document), &role))
		rules = append(rules, role.Rules...)
	}
	require.NotEmpty(t, rules)
	return rules
}

// What docs/security.md says that Prebind may do is what the shipped roles grant.
func TestPermissions(t *testing.T) {
	t.Parallel()
	lines := strings.Split(pagesOfProse(t)["docs/security.md"], "\n")
	told := func(rule rbacv1.PolicyRule) bool {
		words := rule.Resources
		if len(rule.ResourceNames) > 0 {
			words = rule.ResourceNames
		}
		return slices.ContainsFunc(lines, func(line string) bool {
			return strings.HasSuffix(line, ": "+strings.Join(slices.Sorted(slices.Values(rule.Verbs)), ", ")) &&
				!slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) })
		})
	}
	files := []string{"explain/explain.yaml"}
	for _, folder := range []string{
		"base", "plugins/announce", "plugins/node-ready", "plugins/policy", "plugins/device", "plugins/resource-claims", "plugins/volumebinding",
		"mutators/device-info", "certificates/self-managed",
	} {
		files = append(files, folder+"/role.yaml")
	}
	for _, file := range files {
		for _, rule := range rulesOf(t, file) {
			assert.True(t, told(rule), "docs/security.md should contain the permission of %s: %v", file, rule)
		}
	}
}

// Each message in the list of log messages is the beginning of a message in the code.
func TestLogMessages(t *testing.T) {
	t.Parallel()
	var source strings.Builder
	for name, content := range filesOf(t, ".go") {
		if !strings.HasPrefix(name, "test/") && !strings.HasSuffix(name, "_test.go") {
			source.WriteString(content)
		}
	}
	_, section, _ := strings.Cut(pagesOfProse(t)["docs/operations.md"], "## Log messages\n")
	section, _, _ = strings.Cut(section, "\n## ")
	rows := regexp.MustCompile("(?m)^- (`.*?): ").FindAllStringSubmatch(section, -1)
	require.NotEmpty(t, rows)
	for _, row := range rows {
		for _, message := range code.FindAllString(row[1], -1) {
			assert.Contains(t, source.String(), `"`+strings.Trim(message, "`"))
		}
	}
}

// docs/annotations.md names what the program reads, and the reasons of its events.
func TestAnnotations(t *testing.T) {
	t.Parallel()
	page := pagesOfProse(t)["docs/annotations.md"]
	for _, name := range []string{
		work.ReasonWaiting, work.ReasonRefused, work.ReasonAudited, work.ReasonRolledBack,
		framework.AttemptAnnotation, webhook.ExplainAnnotation, certificates.RotateAnnotation,
	} {
		assert.Contains(t, page, "`"+name+"`")
	}
	var out strings.Builder
	command := app.NewCommand()
	command.SetArgs([]string{"plugins"})
	command.SetOut(&out)
	require.NoError(t, command.Execute())
	read := regexp.MustCompile(`([a-z-]+\.prebind\.dev/)\{([^}]*)\}`).FindAllStringSubmatch(out.String(), -1)
	require.NotEmpty(t, read)
	for _, m := range read {
		for key := range strings.SplitSeq(m[2], ", ") {
			assert.Contains(t, page, "`"+m[1]+key+"`")
		}
	}
}
