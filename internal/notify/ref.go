// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/prebind/prebind/binder/framework"
)

// Ref refers to an object, or to several objects, whose changes wake a wait. Refs are comparable.
type Ref struct {
	kind, namespace, name string
	// selection is the name of a Selection, or empty. If it is set, name is the value of the
	// selection's field.
	selection string
}

// RefTo returns the reference to an object with the type of the example, such as
// &corev1.Node{}, or of the items of a list. The namespace is empty for cluster-scoped objects. An empty name means all
// objects in the namespace, or in all namespaces if that is empty, too.
func RefTo(example runtime.Object, namespace, name string) Ref {
	return Ref{kind: framework.KindOf(example), namespace: namespace, name: name}
}

// Selected returns the reference to the objects of the selection with the value.
func Selected(s framework.Selection, value string) Ref {
	return Ref{kind: framework.KindOf(s.Example), name: value, selection: s.Name}
}

// AllBinds returns the reference of every call that waits.
func AllBinds() Ref { return Ref{kind: "Binding"} }
