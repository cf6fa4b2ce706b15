// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"sigs.k8s.io/controller-runtime/pkg/client"

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
// &corev1.Node{}. The namespace is empty for cluster-scoped objects.
func RefTo(example client.Object, namespace, name string) Ref {
	return Ref{kind: framework.KindOf(example), namespace: namespace, name: name}
}

// AllOfList returns the reference to all objects with the type of the items of the list in the namespace, or
// in all namespaces if it is empty.
func AllOfList(list client.ObjectList, namespace string) Ref {
	return Ref{kind: framework.KindOf(list), namespace: namespace}
}

// Selected returns the reference to the objects of the selection whose field has the value.
func Selected(s framework.Selection, value string) Ref {
	return Ref{kind: framework.KindOf(s.Example), name: value, selection: s.Name}
}

// AllBinds returns the reference of every call that waits.
func AllBinds() Ref { return Ref{kind: "Binding"} }
