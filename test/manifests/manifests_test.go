// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package manifests_test holds config/webhook to its promises: it renders the
// manifests as an operator would and checks them as typed objects.
package manifests_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/prebind/prebind/test/install"
)

const (
	root       = "../.."
	everything = "config/webhook"
	base       = "config/webhook/base"
	namespace  = "prebind-system"

	policyComponent = "config/webhook/plugins/policy"
)

// object is what every decoded manifest is.
type object interface {
	runtime.Object
	metav1.Object
}

// render builds the kustomization in dir, relative to the repository's root,
// and decodes it in the order in which it would be applied. Decoding is
// strict: a field that the API does not know fails the test.
func render(t *testing.T, dir string) []object {
	t.Helper()

	out, err := kustomize(t.Context(), dir)
	require.NoError(t, err)

	return decode(t, out, admissionregistrationv1.AddToScheme, appsv1.AddToScheme, corev1.AddToScheme, flowcontrolv1.AddToScheme,
		networkingv1.AddToScheme, policyv1.AddToScheme, rbacv1.AddToScheme, certmanagerv1.AddToScheme, addDefinitions)
}

// addDefinitions adds CustomResourceDefinitions. An end-to-end test applies the shipped one strictly.
func addDefinitions(scheme *runtime.Scheme) error {
	scheme.AddKnownTypeWithName(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}, &unstructured.Unstructured{})
	return nil
}

// decode reads manifests, of these kinds only.
func decode(t *testing.T, content []byte, kinds ...func(*runtime.Scheme) error) []object {
	t.Helper()

	scheme := runtime.NewScheme()
	for _, add := range kinds {
		require.NoError(t, add(scheme))
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()

	var objects []object
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		require.NoError(t, err)

		decoded, _, err := decoder.Decode(document, nil, nil)
		require.NoError(t, err, "in\n%s", document)
		obj, ok := decoded.(object)
		require.True(t, ok, "%T has no metadata", decoded)
		objects = append(objects, obj)
	}
}

func kustomize(ctx context.Context, dir string) ([]byte, error) {
	if err := touch(filepath.Join(root, "config"), filepath.Join(root, "tools.mod")); err != nil {
		return nil, err
	}

	// Like `kubectl apply -k`, which keeps the order of the files unless the kustomization says otherwise.
	top, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	cmd, err := install.Tool(ctx, top, "kustomize", "build", "--reorder=none", filepath.FromSlash(dir))
	if err != nil {
		return nil, err
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("kustomize build %s: %w\n%s", dir, err, stderr.Bytes())
	}
	return out, nil
}

// touch reads the files below the paths. go test does not track files that other processes read: without this it would return a cached result after a change of a
// manifest.
func touch(paths ...string) error {
	for _, path := range paths {
		err := filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			_, err = os.ReadFile(path)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// get returns the one object of type T with that name.
func get[T object](t *testing.T, objects []object, name string) T {
	t.Helper()

	var found []T
	for _, obj := range all[T](objects) {
		if obj.GetName() == name {
			found = append(found, obj)
		}
	}
	require.Len(t, found, 1, "objects of type %T with the name %q", *new(T), name)
	return found[0]
}

// all returns the objects of type T, in order.
func all[T object](objects []object) []T {
	var found []T
	for _, obj := range objects {
		if typed, ok := obj.(T); ok {
			found = append(found, typed)
		}
	}
	return found
}

func kind(obj object) string {
	return obj.GetObjectKind().GroupVersionKind().Kind
}
