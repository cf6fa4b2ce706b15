// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Handle is the access of a plugin to the cluster. It is safe for concurrent use.
type Handle struct {
	// Cached reads the kinds and selections that the plugin's Registration watches, the selections that
	// Select has added, pods without a node, and nodes. It returns an error for others, unless another plugin that is on watches
	// them. The objects are shared: do not change them.
	Cached Reader
	// Live reads from the API server.
	Live Reader
	// Writer writes objects with Prebind's permissions. Status writes their status.
	Writer client.Writer
	Status client.StatusClient
	// Wake repeats the pass of each bind that waits and has read the object, or of each bind that waits if the object is
	// nil. Call it when a state in the memory of the plugin has changed. Changes of the cache wake binds without it.
	Wake  func(object client.Object)
	Clock clock.WithDelayedExecution
	// Events records events on objects of the cluster. An event on the pod of a bind is the
	// engine's task.
	Events events.EventRecorder
	// Replicas returns the number of live replicas, including this one, or 0 if it is not known
	// yet. It does not block.
	Replicas func() int
	// Select watches a selection, for a plugin whose watches depend on objects in the cluster. It returns nil when the cache has
	// all objects. Prebind needs permission to get, list and watch the kind. Errors: meta.IsNoMatchError or apierrors.IsNotFound if
	// the API server does not serve the kind, apierrors.IsForbidden if a permission is missing, otherwise the watch did not
	// begin before the context ended. A selection with the same name is kept; Select then returns the first three errors if its watch
	// cannot continue. Call it in Starter.Start or later.
	Select func(ctx context.Context, s Selection) error
	// Keep ends the selections that Select added and that it has not named for three minutes. Call it every few seconds.
	Keep func(names sets.Set[string])
	// Leads returns whether this replica leads. Only the leader writes what all replicas compute alike,
	// such as the status of an object.
	Leads func() bool
	// Discovery returns the kinds of the API server and their schemas. It is nil in frameworktest.
	Discovery discovery.DiscoveryInterface
	// Namespace is the namespace of Prebind's own objects.
	Namespace string
}
