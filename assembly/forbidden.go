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

// user is a part of the program that watches kinds. remedy is the fix for a missing permission.
type user struct{ name, remedy string }

// core watches the kinds that every replica needs.
var core = user{name: "Prebind", remedy: "apply the manifests of this version"}

func userPlugin(name string) user {
	return user{name: "PreBind plugin " + name, remedy: "apply its role, or switch it off with --prebind-plugins=…,-" + name}
}

func userMutator(name string) user {
	return user{name: "mutator " + name, remedy: "apply its role, or switch it off with --mutators=…,-" + name}
}

// forbidden contains the watches that the API server forbids, by resource. The reflector of a watch tries again
// until it succeeds. It is safe for concurrent use. The zero value is ready to use.
type forbidden struct {
	mu      sync.Mutex
	users   map[schema.GroupResource]user
	watches map[schema.GroupResource]forbiddenWatch
}

// forbiddenWatch is a watch whose last error is err.
type forbiddenWatch struct {
	reflector *toolscache.Reflector
	// version is the last version that the reflector had received when the watch failed. It changes when a later
	// list or watch succeeds.
	version string
	err     error
}

func (w forbiddenWatch) persists() bool {
	return w.err != nil && w.reflector.LastSyncResourceVersion() == w.version
}

// usedBy sets the user of the resource that errors name. The first user remains: without the permission of the
// core, no plugin works.
func (f *forbidden) usedBy(resource schema.GroupResource, by user) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.users[resource]; ok {
		return
	}
	if f.users == nil {
		f.users = map[schema.GroupResource]user{}
	}
	f.users[resource] = by
}

// handle is the handler of the watch errors of informers.
func (f *forbidden) handle(ctx context.Context, r *toolscache.Reflector, err error) {
	toolscache.DefaultWatchErrorHandler(ctx, r, err)
	resource, ok := forbiddenResource(err)
	if !ok {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watches[resource].persists() {
		return // It is in the log.
	}
	if by, ok := f.users[resource]; ok {
		err = fmt.Errorf("%s: the service account lacks a permission: %w; %s", by.name, err, by.remedy)
		klog.FromContext(ctx).Error(err, "A permission is missing")
	}
	if f.watches == nil {
		f.watches = map[schema.GroupResource]forbiddenWatch{}
	}
	f.watches[resource] = forbiddenWatch{reflector: r, version: r.LastSyncResourceVersion(), err: err}
}

// forbiddenResource returns the resource of an answer Forbidden.
func forbiddenResource(err error) (schema.GroupResource, bool) {
	var status apierrors.APIStatus
	if !apierrors.IsForbidden(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return schema.GroupResource{}, false
	}
	details := status.Status().Details
	return schema.GroupResource{Group: details.Group, Resource: details.Kind}, true
}

// err returns the first error while the API server forbids watches.
func (f *forbidden) err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, resource := range slices.SortedFunc(maps.Keys(f.watches), compareResources) {
		if w := f.watches[resource]; w.persists() {
			return w.err
		}
	}
	return nil
}

func compareResources(a, b schema.GroupResource) int { return strings.Compare(a.String(), b.String()) }
