// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"time"

	"github.com/spf13/pflag"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/config/v1alpha1"
)

// Permissions of the plugin. Since Kubernetes 1.36, changing reservations also requires
// permission for resourceclaims/binding in all namespaces, with the verb of the request.
//
// +kubebuilder:rbac:groups=resource.k8s.io,resources=resourceclaims,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=resource.k8s.io,resources=resourceclaims/status,verbs=patch
// +kubebuilder:rbac:groups=resource.k8s.io,resources=resourceclaims/binding,verbs=patch

// Registration returns the plugin's entry in the registry.
func Registration() framework.Registration {
	return framework.Registration{
		Name:        Name,
		On:          true,
		Description: "reserves the pod's ResourceClaims and waits for their devices",
		Arguments: func() framework.Arguments {
			return &Arguments{BindingTimeout: metav1.Duration{Duration: 10 * time.Minute}}
		},
		Requires: []schema.GroupVersionKind{resourcev1.SchemeGroupVersion.WithKind("ResourceClaim")},
		Watches:  []client.Object{&resourcev1.ResourceClaim{}},
		New:      framework.Build(func(h framework.Handle, a *Arguments) (framework.Plugin, error) { return New(h, a), nil }),
	}
}

// Arguments of the plugin.
type Arguments struct {
	// BindingTimeout is the maximum time from the first call until the binding conditions of a claim are true, like bindingTimeout in
	// kube-scheduler's DynamicResourcesArgs, which counts from the allocation.
	BindingTimeout metav1.Duration `json:"bindingTimeout"`
}

// AddFlags implements framework.Arguments.
func (a *Arguments) AddFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&a.BindingTimeout.Duration, "resource-claims-binding-timeout", a.BindingTimeout.Duration,
		"Maximum time from the first call until the binding conditions of a ResourceClaim are true.")
}

// Validate implements framework.Arguments.
func (a *Arguments) Validate(path *field.Path) field.ErrorList {
	return v1alpha1.Positive(path.Child("bindingTimeout"), a.BindingTimeout)
}
