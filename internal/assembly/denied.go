// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// denied contains the watches that the API server rejects, because a permission is missing or the kind is gone, by resource. The
// reflector of a watch tries again until it succeeds. It is safe for concurrent use. The zero value is ready to use.
type denied struct {
	mu sync.Mutex
	// users contains the part of the program that needs each watch, such as a plugin.
	users   map[schema.GroupResource]string
	watches map[schema.GroupResource]deniedWatch
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

// usedBy sets the user of the resource that errors name. The first user remains: without the permission of the
// core, no plugin works.
func (d *denied) usedBy(resource schema.GroupResource, by string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.users[resource]; ok {
		return
	}
	if d.users == nil {
		d.users = map[schema.GroupResource]string{}
	}
	d.users[resource] = by
}

// handle is the handler of the watch errors of informers.
func (d *denied) handle(ctx context.Context, r *toolscache.Reflector, err error) {
	toolscache.DefaultWatchErrorHandler(ctx, r, err)
	resource, ok := deniedResource(err)
	if !ok {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if by, ok := d.users[resource]; ok {
		what, lacks, remedy := "A permission is missing", "the service account lacks a permission", "apply its role of this version, or switch it off"
		if apierrors.IsNotFound(err) {
			what, lacks, remedy = "A kind is missing", "the API server does not serve a kind", "enable it in the API server, or restart Prebind"
		}
		err = fmt.Errorf("%s: %s: %w; %s", by, lacks, err, remedy)
		if !d.watches[resource].persists() {
			klog.FromContext(ctx).Error(err, what)
		}
	}
	if d.watches == nil {
		d.watches = map[schema.GroupResource]deniedWatch{}
	}
	d.watches[resource] = deniedWatch{reflector: r, version: r.LastSyncResourceVersion(), err: err}
}

// deniedResource returns the resource of an answer Forbidden, or of one that the resource does not exist.
func deniedResource(err error) (schema.GroupResource, bool) {
	var status apierrors.APIStatus
	if !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return schema.GroupResource{}, false
	}
	details := status.Status().Details
	return schema.GroupResource{Group: details.Group, Resource: details.Kind}, true
}

// err returns the first error while the API server rejects watches.
func (d *denied) err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, resource := range slices.SortedFunc(maps.Keys(d.watches), compareResources) {
		if w := d.watches[resource]; w.persists() {
			return w.err
		}
	}
	return nil
}

func compareResources(a, b schema.GroupResource) int { return strings.Compare(a.String(), b.String()) }
