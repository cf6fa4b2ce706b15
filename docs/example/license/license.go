// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package license is an example of a PreBind plugin that holds something while the pod runs. At most ten pods that name a product in the
// annotation license.prebind.dev/product run at the same time, for example because a license server allows no more.
//
// A license is a ConfigMap license-PRODUCT-N in Prebind's namespace. Creating it is the compare-and-swap: of two binds that choose the same N,
// one succeeds. It contains the pod, and the marks of the attempts to bind the pod. PreBindRollBack deletes it with the last mark. PostBind
// removes all marks, which confirms the license. Tidy deletes it within two minutes after its pod has ended.
//
// A license does not depend on the node, so all methods find it by the UID of the pod. For an object that does, they must use the node, too.
//
// Tenants cannot write in Prebind's namespace, so the plugin trusts its ConfigMaps. Tenants can write the annotation, so it is validated.
package license

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/config/v1alpha1"
)

// Name of the plugin.
const Name = "license"

// The metadata of a license: labels with the constant Name, the product, and the UID of the pod, and an annotation with the JSON of the marks.
const (
	componentLabel  = "app.kubernetes.io/component"
	productLabel    = Name + ".prebind.dev/product"
	podLabel        = Name + ".prebind.dev/pod-uid"
	marksAnnotation = Name + ".prebind.dev/marks"
)

// Registration returns the entry for app.WithPlugin. The folder config contains the plugin's role.
func Registration() framework.Registration {
	return framework.Registration{
		Name: Name, Description: "limits the running pods of a product", AnnotationsHelp: "product",
		Arguments: func() framework.Arguments { return &arguments{Seats: 10} },
		Selections: func(namespace string, _ framework.Arguments) []framework.Selection {
			return []framework.Selection{all(namespace), byProduct(namespace)}
		},
		New: framework.Build(func(h framework.Handle, a *arguments) (framework.Plugin, error) {
			return &plugin{Handle: h, seats: a.Seats}, nil
		}),
	}
}

// all selects all licenses, for Marks and Tidy.
func all(namespace string) framework.Selection {
	ours := labels.SelectorFromSet(labels.Set{componentLabel: Name})
	return framework.Selection{Name: Name + "/all", Example: &corev1.ConfigMap{}, Namespace: namespace, Labels: ours}
}

// byProduct selects the licenses by their product, so that the cost of a bind does not depend on other products.
func byProduct(namespace string) framework.Selection {
	s := all(namespace)
	s.Name, s.Value = Name+"/by-product", func(o client.Object) string { return o.GetLabels()[productLabel] }
	return s
}

// arguments are arguments.license in the configuration file, and flags.
type arguments struct {
	Seats int `json:"seats"`
}

// AddFlags implements framework.Arguments.
func (a *arguments) AddFlags(fs *pflag.FlagSet) {
	fs.IntVar(&a.Seats, "license-seats", a.Seats, "Maximum number of pods with the same product that run at the same time.")
}

// Validate implements framework.Arguments.
func (a *arguments) Validate(path *field.Path) field.ErrorList {
	return v1alpha1.Between(path.Child("seats"), a.Seats, 1, 1000)
}

type plugin struct {
	framework.Handle
	seats int
}

var _ framework.PreBinder = (*plugin)(nil)

var _ framework.Tidier = (*plugin)(nil)

// Name implements framework.Plugin.
func (*plugin) Name() string { return Name }

// OnRequest implements framework.OnRequest.
func (*plugin) OnRequest() {}

// SetupBindContextExtension reads the licenses of the product. A bind that waits decides again when one of them changes. The extension is the
// license that the pod has, or else the first free one, which does not exist yet, or nil.
func (p *plugin) SetupBindContextExtension(ctx context.Context, cache framework.Reader, bc *framework.BindContext) error {
	product := bc.Parameter(Name, "product")
	if len(product.Value) > 40 || len(validation.IsDNS1123Label(product.Value)) > 0 {
		return product.Invalid("must be a DNS label of at most 40 characters")
	}
	var licenses corev1.ConfigMapList
	if err := cache.List(ctx, &licenses, byProduct(p.Namespace).Where(product.Value)); err != nil {
		return err
	}
	taken := map[string]bool{"": true}
	for i := range licenses.Items {
		if licenses.Items[i].Labels[podLabel] == string(bc.Pod.UID) {
			framework.Extend(bc, &licenses.Items[i])
			return nil
		}
		taken[licenses.Items[i].Name] = true
	}
	var license *corev1.ConfigMap
	if len(licenses.Items) < p.seats {
		license = &corev1.ConfigMap{Data: map[string]string{"namespace": bc.Pod.Namespace, "pod": bc.Pod.Name}}
		license.Labels = map[string]string{componentLabel: Name, productLabel: product.Value, podLabel: string(bc.Pod.UID)}
		for n := 1; taken[license.Name]; n++ {
			license.Namespace, license.Name = p.Namespace, fmt.Sprintf("license-%s-%d", product.Value, n)
		}
	}
	framework.Extend(bc, license)
	return nil
}

// PreFlight requests the license, unless the pod has it and it is confirmed or has the mark of this attempt.
func (p *plugin) PreFlight(bc *framework.BindContext) (framework.Verdict, error) {
	license, err := framework.Extension[*corev1.ConfigMap](bc)
	product := bc.Parameter(Name, "product").Value
	switch {
	case err != nil:
		return framework.Verdict{}, err
	case license == nil:
		return framework.Verdict{Wait: framework.Wait{For: fmt.Sprintf("one of the %d licenses of %s", p.seats, product)}}, nil
	case license.ResourceVersion == "" && bc.Written: // Do not take a second one.
		return framework.Verdict{Wait: framework.Wait{For: "the cache to show its license of " + product}}, nil
	}
	marks := marksOf(license)
	if license.ResourceVersion != "" && (len(marks) == 0 || slices.Contains(marks, bc.Mark())) {
		return framework.Verdict{}, nil
	}
	return framework.Verdict{Writes: []string{"take a license of " + product}}, nil
}

// PreBind creates the license, or adds the mark to it. After a conflict, the bind waits for a change.
func (p *plugin) PreBind(ctx context.Context, bc *framework.BindContext) error {
	license, err := framework.Extension[*corev1.ConfigMap](bc)
	if err != nil {
		return err
	}
	if err := p.write(ctx, license, append(marksOf(license), bc.Mark())); err != nil {
		return framework.FromAPI(framework.ObjectOf(license), "taking it", err)
	}
	return nil
}

// PreBindRollBack removes the mark, and deletes the license with the last one. A confirmed license has none.
func (p *plugin) PreBindRollBack(ctx context.Context, m framework.Mark) error {
	return p.each(ctx, m, func(license *corev1.ConfigMap) error {
		marks := marksOf(license)
		i := slices.Index(marks, m)
		if i < 0 {
			return nil
		}
		if len(marks) == 1 {
			return p.delete(ctx, license)
		}
		return p.write(ctx, license, slices.Delete(marks, i, i+1))
	})
}

// PostBind confirms the license. The pod is bound, so no other attempt needs its mark.
func (p *plugin) PostBind(ctx context.Context, m framework.Mark, _ *corev1.Pod) error {
	return p.each(ctx, m, func(license *corev1.ConfigMap) error { return p.write(ctx, license, []framework.Mark{}) })
}

// each calls change with the licenses of the mark's pod, as the API server has them, again after a conflict. There is more than one if the
// caches of two replicas were behind.
func (p *plugin) each(ctx context.Context, m framework.Mark, change func(*corev1.ConfigMap) error) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		var licenses corev1.ConfigMapList
		err := p.Live.List(ctx, &licenses, client.InNamespace(p.Namespace), client.MatchingLabels{podLabel: string(m.PodUID)})
		for i := 0; err == nil && i < len(licenses.Items); i++ {
			err = client.IgnoreNotFound(change(&licenses.Items[i]))
		}
		return err
	})
}

// Marks lists the marks of all licenses.
func (p *plugin) Marks(ctx context.Context) (marks []framework.Mark, err error) {
	var licenses corev1.ConfigMapList
	err = p.Cached.List(ctx, &licenses, all(p.Namespace).Where(""))
	for i := range licenses.Items {
		marks = append(marks, marksOf(&licenses.Items[i])...)
	}
	return marks, err
}

// Tidy deletes the licenses of pods that have ended. It checks at most 500, in random order, so that each has its turn.
func (p *plugin) Tidy(ctx context.Context) error {
	var licenses corev1.ConfigMapList
	errs := []error{p.Cached.List(ctx, &licenses, all(p.Namespace).Where(""))}
	for _, i := range rand.Perm(len(licenses.Items))[:min(len(licenses.Items), 500)] {
		license := &licenses.Items[i]
		pod, err := framework.Get(ctx, p.Live, &corev1.Pod{}, license.Data["namespace"], license.Data["pod"])
		if err == nil && (pod == nil || string(pod.UID) != license.Labels[podLabel] ||
			pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed) {
			err = client.IgnoreNotFound(p.delete(ctx, license))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// write creates the license, or replaces the marks of one that has not changed since it was read.
func (p *plugin) write(ctx context.Context, license *corev1.ConfigMap, marks []framework.Mark) error {
	value, err := json.Marshal(marks)
	if err != nil {
		return err
	}
	license = license.DeepCopy()
	metav1.SetMetaDataAnnotation(&license.ObjectMeta, marksAnnotation, string(value))
	if license.ResourceVersion == "" {
		return p.Writer.Create(ctx, license)
	}
	return p.Writer.Update(ctx, license)
}

// delete deletes the license if it has not changed since it was read.
func (p *plugin) delete(ctx context.Context, license *corev1.ConfigMap) error {
	return p.Writer.Delete(ctx, license, client.Preconditions{UID: &license.UID, ResourceVersion: &license.ResourceVersion})
}

// marksOf returns the marks of a license. A confirmed license has none.
func marksOf(license *corev1.ConfigMap) (marks []framework.Mark) {
	_ = json.Unmarshal([]byte(license.Annotations[marksAnnotation]), &marks) // Only write writes the annotation.
	return marks
}
