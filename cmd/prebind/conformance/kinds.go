// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
)

// lister lists and deletes objects of one kind.
type lister[L runtime.Object] interface {
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Delete(ctx context.Context, name string, o metav1.DeleteOptions) error
}

// kindOf returns the kind of a client.
func kindOf[L runtime.Object](name string, client lister[L]) kind {
	return kind{
		name: name,
		list: func(ctx context.Context, o metav1.ListOptions) ([]metav1.Object, error) {
			list, err := client.List(ctx, o)
			if err != nil {
				return nil, err
			}
			var all []metav1.Object
			err = meta.EachListItem(list, func(o runtime.Object) error {
				m, err := meta.Accessor(o)
				all = append(all, m)
				return err
			})
			return all, err
		},
		delete: client.Delete,
	}
}

// kinds returns the kinds of objects with the label of a run, in the order of their removal.
func kinds(client kubernetes.Interface) []kind {
	return []kind{
		kindOf("ValidatingAdmissionPolicyBindings", client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()),
		kindOf("ValidatingAdmissionPolicies", client.AdmissionregistrationV1().ValidatingAdmissionPolicies()),
		kindOf("Namespaces", client.CoreV1().Namespaces()),
		kindOf("PersistentVolumes", client.CoreV1().PersistentVolumes()),
		kindOf("StorageClasses", client.StorageV1().StorageClasses()),
	}
}
