// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cases_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/internal/policy/cases"
)

const library = "../../../config/policies"

// TestLibrary runs the cases of the shipped policies.
func TestLibrary(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir(library)
	require.NoError(t, err)
	require.Len(t, entries, 11)
	for _, entry := range entries {
		name := entry.Name()
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(library, name)
			r, err := cases.Run(t.Context(), dir)
			require.NoError(t, err)
			require.NoError(t, r.Err)
			for _, c := range r.Cases {
				assert.Empty(t, c.Failures, c.Name)
			}
			assert.Empty(t, r.Uncovered(), "a shipped policy has a case for each result that it can have")

			require.Len(t, r.Policies, 1)
			p := r.Policies[0]
			assert.Equal(t, name, p.GetName(), "the directory has the name of the policy")
			assert.Empty(t, p.Warnings)
			listed := kustomization(t, dir)
			assert.Contains(t, listed, "policy.yaml")
			var watched []string
			for _, resource := range p.Compiled.Reads() {
				if resource == policy.Claims {
					continue // The role of the plugin grants them.
				}
				plural, _ := meta.UnsafeGuessKindToResource(resource.Kind)
				watched = append(watched, plural.Group+"/"+plural.Resource)
			}
			slices.Sort(watched)
			assert.Equal(t, slices.Compact(watched), granted(t, name, listed), "the role grants the kinds that the policy watches, and no other kinds")
		})
	}
}

// annotationRead is an annotation that a container reads with the downward API.
var annotationRead = regexp.MustCompile(`metadata\.annotations\['(.+?)'\]`)

// TestLibrary_ExamplesReadWhatThePolicyWrites checks the examples of products beside the policies: they are valid YAML without
// duplicate keys, and the annotations that their containers read are those of the policy.
func TestLibrary_ExamplesReadWhatThePolicyWrites(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob(filepath.Join(library, "*", "*.yaml"))
	require.NoError(t, err)
	read := 0
	for _, path := range paths {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		for document := range strings.SplitSeq(string(content), "\n---\n") {
			require.NoError(t, yaml.UnmarshalStrict([]byte(document), &map[string]any{}), path)
		}
		dir := filepath.Dir(path)
		written, err := os.ReadFile(filepath.Join(dir, "policy.yaml"))
		require.NoError(t, err)
		for _, m := range annotationRead.FindAllStringSubmatch(string(content), -1) {
			key := strings.TrimPrefix(m[1], filepath.Base(dir)+".policy.prebind.dev/")
			assert.Contains(t, string(written), "- key: "+key+"\n", "%s reads %s", path, m[1])
			read++
		}
	}
	assert.NotZero(t, read)
}

// kustomization returns the resources of the directory's kustomization.
func kustomization(t *testing.T, dir string) []string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	require.NoError(t, err)
	var k struct {
		Resources []string `json:"resources"`
	}
	require.NoError(t, yaml.Unmarshal(content, &k))
	return k.Resources
}

// granted returns the kinds that the policy's role grants, as group/resource.
func granted(t *testing.T, name string, listed []string) []string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(library, name, "role.yaml"))
	if os.IsNotExist(err) {
		assert.NotContains(t, listed, "role.yaml")
		return nil
	}
	require.NoError(t, err)
	assert.Contains(t, listed, "role.yaml")
	var role rbacv1.ClusterRole
	require.NoError(t, yaml.UnmarshalStrict(content, &role))
	assert.Equal(t, "prebind-policy-"+name, role.Name)
	assert.Equal(t, map[string]string{"rbac.prebind.dev/aggregate-to-policy": "true"}, role.Labels)
	var all []string
	for _, rule := range role.Rules {
		assert.Equal(t, []string{"get", "list", "watch"}, rule.Verbs)
		for _, resource := range rule.Resources {
			all = append(all, rule.APIGroups[0]+"/"+resource)
		}
	}
	slices.Sort(all)
	return all
}
