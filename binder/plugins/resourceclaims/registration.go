// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// Registration returns the plugin's entry in the registry.
func Registration() framework.Registration {
	return framework.Registration{
		Name:        Name,
		On:          true,
		Description: "reserves the pod's ResourceClaims and waits for their devices",
		Arguments:   func() framework.Arguments { return &Arguments{BindingTimeout: 10 * time.Minute} },
		Requires:    []schema.GroupVersionKind{resourcev1.SchemeGroupVersion.WithKind("ResourceClaim")},
		Watches: func(a framework.Arguments) []client.Object {
			if allocates(a) {
				return []client.Object{&resourcev1.ResourceClaim{}, &resourcev1.ResourceSlice{}, &resourcev1.DeviceClass{}}
			}
			return []client.Object{&resourcev1.ResourceClaim{}}
		},
		Index: func(ctx context.Context, indexer client.FieldIndexer, a framework.Arguments) error {
			if allocates(a) {
				return addIndexes(ctx, indexer, append(claimIndexes(), sliceIndexes()...))
			}
			return addIndexes(ctx, indexer, claimIndexes())
		},
		New: func(h framework.Handle, a framework.Arguments) (framework.PreBinder, error) {
			args, err := framework.ArgumentsAs[*Arguments](a)
			if err != nil {
				return nil, err
			}
			return New(h, args)
		},
	}
}

// Arguments of the plugin.
type Arguments struct {
	// BindingTimeout is the maximum time from the allocation of a claim until its binding
	// conditions are true, like bindingTimeout in kube-scheduler's DynamicResourcesArgs.
	BindingTimeout time.Duration `yaml:"bindingTimeout"`
	// Allocate are the DeviceClasses whose claims Prebind allocates.
	Allocate []string `yaml:"allocate"`
}

// allocates reports whether Prebind allocates any DeviceClasses.
func allocates(a framework.Arguments) bool {
	args, err := framework.ArgumentsAs[*Arguments](a)
	return err == nil && len(args.Allocate) > 0
}

// AddFlags implements framework.Arguments.
func (a *Arguments) AddFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&a.BindingTimeout, "resource-claims-binding-timeout", a.BindingTimeout,
		"Maximum time from the allocation of a ResourceClaim until its binding conditions are true, like bindingTimeout in kube-scheduler's DynamicResourcesArgs.")
	fs.StringSliceVar(&a.Allocate, "resource-claims-allocate", a.Allocate,
		"DeviceClasses whose claims Prebind allocates, for schedulers that do not support ResourceClaims. No scheduler may allocate claims of these classes.")
}

// Validate implements framework.Arguments.
func (a *Arguments) Validate() []framework.Problem {
	problems := framework.Positive("bindingTimeout", a.BindingTimeout)
	for i, class := range a.Allocate {
		if wrong := validation.IsDNS1123Subdomain(class); len(wrong) > 0 {
			problems = append(problems, framework.Problem{
				Field: fmt.Sprintf("allocate[%d]", i),
				Err:   fmt.Errorf("%q: invalid DeviceClass name: %s", class, strings.Join(wrong, "; ")),
			})
		}
	}
	return problems
}
