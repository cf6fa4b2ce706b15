// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/prebind/prebind/mutators/bindinfo"
	"github.com/prebind/prebind/mutators/deviceinfo"
	"github.com/prebind/prebind/mutators/nodeinfo"
	"github.com/prebind/prebind/mutators/topology"
)

const header = "# Copyright The Prebind Authors.\n# SPDX-License-Identifier: Apache-2.0\n\n# "

var (
	workloads = filepath.Join(root, "docs", "manifests")
	ourField  = regexp.MustCompile(`^metadata\.annotations\['([a-z-]+)\.prebind\.dev/[a-z.-]+'\]$`)
	flagName  = regexp.MustCompile(`--[a-z][a-z-]*`)
)

// workloadFiles returns the shipped examples of workloads by their names.
func workloadFiles(t *testing.T) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(workloads, "*.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	files := map[string][]byte{}
	for _, path := range paths {
		files[filepath.Base(path)], err = os.ReadFile(path)
		require.NoError(t, err)
	}
	return files
}

// decodeWorkload is strict, and knows no kind that a workload has no need of,
// roles above all.
func decodeWorkload(t *testing.T, content []byte) []object {
	t.Helper()
	return decode(t, content, appsv1.AddToScheme, batchv1.AddToScheme, corev1.AddToScheme, resourcev1.AddToScheme)
}

// podOf is the pod that the object makes, or nil.
func podOf(obj object) *corev1.PodSpec {
	switch o := obj.(type) {
	case *corev1.Pod:
		return &o.Spec
	case *appsv1.StatefulSet:
		return &o.Spec.Template.Spec
	case *batchv1.Job:
		return &o.Spec.Template.Spec
	default:
		return nil
	}
}

// The end-to-end tests apply these files; here is what no API server minds.
func TestWorkloads(t *testing.T) {
	flags, err := os.ReadFile(filepath.Join(root, "docs", "flags.md"))
	require.NoError(t, err)
	readme, err := os.ReadFile(filepath.Join(workloads, "README.md"))
	require.NoError(t, err)
	for name, content := range workloadFiles(t) {
		t.Run(name, func(t *testing.T) {
			assert.True(t, strings.HasPrefix(string(content), header), "the licence comes first, and then what the file is for")
			assert.Contains(t, string(readme), "["+name+"]("+name+")", "it should be in the list")
			for line := range strings.Lines(string(content)) {
				if !strings.HasPrefix(line, "#") {
					continue
				}
				for _, flag := range flagName.FindAllString(line, -1) {
					assert.Contains(t, string(flags), " "+flag+" ", "Prebind should have the flags that it names")
				}
			}

			var pods []*corev1.PodSpec
			for _, obj := range decodeWorkload(t, content) {
				assert.Empty(t, obj.GetNamespace(), "the user selects the namespace")
				assert.NotEmpty(t, obj.GetLabels()["app.kubernetes.io/name"], "%s %s should be found by its name", kind(obj), obj.GetName())
				if pod := podOf(obj); pod != nil {
					pods = append(pods, pod)
				}
			}
			require.Len(t, pods, 1)
			pod := pods[0]
			assert.Empty(t, pod.InitContainers, "that none is needed is what it shows")
			assert.Empty(t, pod.ServiceAccountName, "that no permission is needed is what it shows")
			assert.Equal(t, new(false), pod.AutomountServiceAccountToken, "that no permission is needed is what it shows")
			require.Len(t, pod.Containers, 1)
			container := pod.Containers[0]
			assert.Regexp(t, `:[0-9][^:]*$`, container.Image, "an image without a version runs something else tomorrow")
			assert.False(t, container.Resources.Requests.Cpu().IsZero() || container.Resources.Requests.Memory().IsZero(), "the scheduler reserves room")
			assert.False(t, container.Resources.Limits.Memory().IsZero(), "a leak must not take the node along")

			mounted := map[string]bool{}
			for _, m := range container.VolumeMounts {
				mounted[m.Name] = true
			}
			for _, v := range pod.Volumes {
				assert.True(t, mounted[v.Name], "no container uses the volume %s", v.Name)
			}
		})
	}
}

// Each mutator is shown both as a variable and as a file.
func TestWorkloadsShowEveryMutator(t *testing.T) {
	shown := map[string]bool{}
	note := func(how string, field *corev1.ObjectFieldSelector) {
		if field == nil || !strings.HasPrefix(field.FieldPath, "metadata.annotations") {
			return
		}
		parts := ourField.FindStringSubmatch(field.FieldPath)
		if assert.NotNil(t, parts, "%s is none of Prebind's", field.FieldPath) {
			shown[parts[1]+" as "+how] = true
		}
	}
	for _, content := range workloadFiles(t) {
		for _, obj := range decodeWorkload(t, content) {
			pod := podOf(obj)
			if pod == nil {
				continue
			}
			for _, env := range pod.Containers[0].Env {
				if env.ValueFrom != nil {
					note("variable", env.ValueFrom.FieldRef)
				}
			}
			for _, v := range pod.Volumes {
				if v.DownwardAPI == nil {
					continue
				}
				for _, item := range v.DownwardAPI.Items {
					note("file", item.FieldRef)
				}
			}
		}
	}
	want := map[string]bool{}
	for _, name := range []string{topology.Name, nodeinfo.Name, bindinfo.Name, deviceinfo.Name} {
		want[name+" as variable"], want[name+" as file"] = true, true
	}
	assert.Equal(t, want, shown)
}
