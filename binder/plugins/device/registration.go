// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// The record of a node is in Prebind's own namespace.
//
// +kubebuilder:rbac:groups="",resources=configmaps,namespace=prebind-system,verbs=get;list;watch;create;update;delete

// Name of the plugin.
const Name = "device"

// Registration returns the plugin's entry in the registry.
func Registration() framework.Registration {
	return framework.Registration{
		Name:        Name,
		On:          true,
		Description: "gives the devices that annotations name to one pod at a time",
		Annotations: "<resource>, node-lock",
		Arguments:   func() framework.Arguments { return &Arguments{NodeLockTimeout: 15 * time.Minute} },
		Watches:     framework.Always(&corev1.ConfigMap{}),
		Caches:      Caches,
		Index: func(ctx context.Context, indexer client.FieldIndexer, _ framework.Arguments) error {
			return SetupIndexes(ctx, indexer)
		},
		Permissions: func(framework.Arguments) (framework.Permissions, error) { return framework.Shipped("plugins/device") },
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
	// NodeLocks makes every pod that names devices take the lock of its node.
	NodeLocks bool `yaml:"nodeLocks"`
	// NodeLockTimeout is the age at which a lock can be taken from its holder. It should be
	// longer than any bind takes.
	NodeLockTimeout time.Duration `yaml:"nodeLockTimeout"`
}

// AddFlags implements framework.Arguments.
func (a *Arguments) AddFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&a.NodeLocks, "device-node-locks", a.NodeLocks,
		"Let every pod that names devices for the plugin device be the only one to be bound to its node at a time, as device managers need that look for the pod that is being bound. The annotation device.<domain>/node-lock asks for the same.")
	fs.DurationVar(&a.NodeLockTimeout, "device-node-lock-timeout", a.NodeLockTimeout,
		"When the lock of a node may be taken from a bind that still holds it. It should be longer than any bind takes.")
}

// Validate implements framework.Arguments.
func (a *Arguments) Validate() []framework.Problem {
	return framework.Positive("nodeLockTimeout", a.NodeLockTimeout)
}
