// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/ledger"
)

// The records are in Prebind's own namespace.
//
// +kubebuilder:rbac:groups="",resources=configmaps,namespace=prebind-system,verbs=get;list;watch;create;update;delete

// Name of the plugin.
const Name = "device"

// Registration returns the plugin's entry in the registry.
func Registration() framework.Registration {
	return framework.Registration{
		Name:            Name,
		On:              true,
		Description:     "grants the devices that annotations list to one pod at a time",
		AnnotationsHelp: "<resource>, node-lock",
		Arguments: func() framework.Arguments {
			return &Arguments{NodeLockTimeout: metav1.Duration{Duration: 15 * time.Minute}}
		},
		Selections: func(namespace string, _ framework.Arguments) []framework.Selection {
			return []framework.Selection{ledger.Records(component, namespace, unconfirmed)}
		},
		New: framework.Build(func(h framework.Handle, a *Arguments) (framework.Plugin, error) { return New(h, a), nil }),
	}
}

// Arguments of the plugin.
type Arguments struct {
	// NodeLocks makes every pod with device annotations take the node lock.
	NodeLocks bool `json:"nodeLocks"`
	// NodeLockTimeout is the age at which another bind can take over a lock. It is at least 100 s, and should be
	// longer than any bind takes.
	NodeLockTimeout metav1.Duration `json:"nodeLockTimeout"`
}

// AddFlags implements framework.Arguments.
func (a *Arguments) AddFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&a.NodeLocks, "device-node-locks", a.NodeLocks,
		"Bind only one pod with device annotations to a node at a time, as the annotation device.prebind.dev/node-lock does for one pod.")
	fs.DurationVar(&a.NodeLockTimeout.Duration, "device-node-lock-timeout", a.NodeLockTimeout.Duration,
		"Age at which another bind can take over a node lock. At least 100s; it should be longer than any bind.")
}

// Validate implements framework.Arguments.
func (a *Arguments) Validate(path *field.Path) field.ErrorList {
	if least := 2 * framework.BindSettles; a.NodeLockTimeout.Duration < least {
		return field.ErrorList{field.Invalid(path.Child("nodeLockTimeout"), a.NodeLockTimeout.Duration.String(), fmt.Sprintf("must be at least %s", least))}
	}
	return nil
}
