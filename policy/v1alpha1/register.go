// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion of the types of this package.
var GroupVersion = schema.GroupVersion{Group: "policy.prebind.dev", Version: "v1alpha1"}

// Kind of a BindPolicy.
var Kind = GroupVersion.WithKind("BindPolicy")

// TaskKind is the kind of a BindTask.
var TaskKind = GroupVersion.WithKind("BindTask")

// AddToScheme adds the types of this package to the scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &BindPolicy{}, &BindPolicyList{}, &BindTask{}, &BindTaskList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
