// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	kinds "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
)

// TestClusterScoped compares the table with the typed clients: only those of namespaced kinds have the namespace as a parameter.
func TestClusterScoped(t *testing.T) {
	namespaced := map[string]bool{} // By package of the client and kind, such as core/v1.Pod.
	for version := range reflect.TypeFor[kubernetes.Interface]().Methods() {
		if version.Type.NumOut() != 1 || version.Type.Out(0).Kind() != reflect.Interface {
			continue
		}
		for m := range version.Type.Out(0).Methods() {
			out := m.Type.Out(0)
			kind, ok := strings.CutSuffix(out.Name(), "Interface")
			_, path, typed := strings.Cut(out.PkgPath(), "/kubernetes/typed/")
			if ok && typed {
				namespaced[path+"."+kind] = m.Type.NumIn() == 1
			}
		}
	}
	var want []string
	for kind, typed := range scheme.Scheme.AllKnownTypes() {
		_, path, _ := strings.Cut(typed.PkgPath(), "k8s.io/api/")
		if in, ok := namespaced[path+"."+kind.Kind]; ok && !in && IsBuiltIn(kind) {
			want = append(want, kind.GroupKind().String())
		}
	}
	slices.Sort(want)
	assert.Equal(t, slices.Compact(want), sets.List(clusterScoped))
	assert.NotContains(t, clusterScoped, kinds.GroupKind{Kind: "Pod"}.String())
}
