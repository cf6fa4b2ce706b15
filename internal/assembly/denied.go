// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// denied contains the watches that the API server rejects, because a permission is missing or the kind is gone, by the type of their
// objects. The reflector of a watch tries again until it succeeds. It is safe for concurrent use. The zero value is ready to use.
type denied struct {
	mu sync.Mutex
	// users contains the part of the program that needs each watch, such as a plugin.
	users   map[string]string
	watches map[string]deniedWatch
}

// deniedWatch is a watch whose last error is err.
type deniedWatch struct {
	reflector *toolscache.Reflector
	// version is the last version that the reflector had received when the watch failed. It changes when a later
	// list or watch succeeds.
	version string
	err     error
}

func (w deniedWatch) persists() bool {
	return w.err != nil && w.reflector.LastSyncResourceVersion() == w.version
}

// usedBy sets the user of the kind that errors name. The first user remains: without the permission of the
// core, no plugin works.
func (d *denied) usedBy(example client.Object, by string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.users == nil {
		d.users = map[string]string{}
	}
	kind := fmt.Sprintf("%T", example)
	if _, untyped := example.(runtime.Unstructured); untyped { // As the reflector describes it.
		kind = example.GetObjectKind().GroupVersionKind().String()
	}
	d.users[kind] = cmp.Or(d.users[kind], by)
}

// handle is the handler of the watch errors of informers.
func (d *denied) handle(ctx context.Context, r *toolscache.Reflector, err error) {
	toolscache.DefaultWatchErrorHandler(ctx, r, err)
	if !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
		return
	}
	kind := r.TypeDescription()
	d.mu.Lock()
	defer d.mu.Unlock()
	if by, ok := d.users[kind]; ok {
		what, lacks, remedy := "A permission is missing", "the service account lacks a permission", "apply its role of this version, or switch it off"
		if apierrors.IsNotFound(err) {
			what, lacks, remedy = "A kind is missing", "the API server does not serve a kind", "enable it in the API server, or restart Prebind"
		}
		err = fmt.Errorf("%s: %s: %w; %s", by, lacks, err, remedy)
		if !d.watches[kind].persists() {
			klog.FromContext(ctx).Error(err, what)
		}
	}
	if d.watches == nil {
		d.watches = map[string]deniedWatch{}
	}
	d.watches[kind] = deniedWatch{reflector: r, version: r.LastSyncResourceVersion(), err: err}
}

// err returns the first error while the API server rejects watches.
func (d *denied) err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, kind := range slices.Sorted(maps.Keys(d.watches)) {
		if w := d.watches[kind]; w.persists() {
			return w.err
		}
	}
	return nil
}
