// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Handle is what a plugin is built with. All of it is safe for concurrent use.
type Handle struct {
	// Cached reads what the plugin's Registration watches, pods without a node, and
	// nodes. Other kinds are an error. What it returns is shared and must not be changed.
	Cached Reader
	// Live reads from the API server.
	Live Reader
	// Writer writes to the API server, with Prebind's permissions, and Status writes the
	// status of objects.
	Writer client.Writer
	Status client.StatusClient
	// Changes wakes waits when an object of the cache changes. Await uses it.
	Changes *Hub
	Clock   clock.WithDelayedExecution
	// Namespace is that of Prebind's own objects.
	Namespace string
}
