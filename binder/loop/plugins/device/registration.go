// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/prebind/prebind/binder/framework"
)

// Name of the plugin.
const Name = "device"

// Arguments of the plugin.
type Arguments struct {
	// NodeLocks makes every pod with device annotations take the node lock.
	NodeLocks bool `yaml:"nodeLocks"`
	// NodeLockTimeout is the age at which another bind can take over a lock. It should be
	// longer than any bind takes.
	NodeLockTimeout time.Duration `yaml:"nodeLockTimeout"`
}

// AddFlags implements framework.Arguments.
func (a *Arguments) AddFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&a.NodeLocks, "device-node-locks", a.NodeLocks,
		"Take the node lock for every pod with device annotations, so that only one of them is bound to a node at a time. Some device managers require this. The annotation device.prebind.dev/node-lock does the same for one pod.")
	fs.DurationVar(&a.NodeLockTimeout, "device-node-lock-timeout", a.NodeLockTimeout,
		"Age at which another bind can take over a node lock. Set it longer than any bind takes.")
}

// Validate implements framework.Arguments.
func (a *Arguments) Validate() []framework.Problem {
	return framework.Positive("nodeLockTimeout", a.NodeLockTimeout)
}
