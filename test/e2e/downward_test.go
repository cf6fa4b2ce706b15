// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// downward returns the values that the containers of the pod read with the downward API, by "env NAME" and "file PATH". It
// applies the rules of the kubelet to the stored pod, and returns an error where the kubelet fails.
func downward(pod *corev1.Pod) (map[string]string, error) {
	out := map[string]string{}
	read := func(name string, field *corev1.ObjectFieldSelector) error {
		if field == nil {
			return nil
		}
		value, err := fieldOf(pod, field.FieldPath)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		out[name] = value
		return nil
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, env := range c.Env {
			if env.ValueFrom == nil {
				continue
			}
			if err := read("env "+env.Name, env.ValueFrom.FieldRef); err != nil {
				return nil, err
			}
		}
	}
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].DownwardAPI == nil {
			continue
		}
		for _, item := range pod.Spec.Volumes[i].DownwardAPI.Items {
			if err := read("file "+item.Path, item.FieldRef); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// fieldOf returns the field of the pod with the path, like the kubelet. A missing annotation or label is an empty string.
func fieldOf(pod *corev1.Pod, path string) (string, error) {
	if key, ok := subscript(path, "metadata.annotations"); ok {
		return pod.Annotations[key], nil
	}
	if key, ok := subscript(path, "metadata.labels"); ok {
		return pod.Labels[key], nil
	}
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	default:
		return "", fmt.Errorf("unsupported field path %q", path)
	}
}

// subscript returns the key of a path such as metadata.annotations['key'].
func subscript(path, field string) (key string, ok bool) {
	key, ok = strings.CutPrefix(path, field+"['")
	if !ok {
		return "", false
	}
	key, ok = strings.CutSuffix(key, "']")
	return key, ok && key != ""
}
