// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeready

import (
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/internal/volumes"
)

// Name of the plugin.
const Name = "node-ready"

// Registration returns the plugin's entry in the registry.
func Registration() framework.Registration {
	return framework.Registration{
		Name:            Name,
		Description:     "waits until the node has the CSI drivers, agents, conditions and extended resources that the pod needs",
		AnnotationsHelp: keyTimeout,
		Arguments:       func() framework.Arguments { return defaults() },
		Watches:         []client.Object{&storagev1.CSIDriver{}, &storagev1.StorageClass{}},
		Selections:      selections,
		New: framework.Build(func(_ framework.Handle, a *Arguments) (framework.Plugin, error) {
			p, invalid := a.parse(nil)
			return framework.NewPlugin(Name, p.decide), invalid.ToAggregate()
		}),
	}
}

// selections returns what the checks of volumes and of agents need.
func selections(_ string, a framework.Arguments) []framework.Selection {
	args, err := v1alpha1.ArgumentsAs[*Arguments](a)
	if err != nil {
		return nil
	}
	var all []framework.Selection
	if args.has(checkDrivers) || args.has(checkLimits) {
		all = append(all, volumes.Claims, volumes.Volumes, volumes.CSINodes)
	}
	if args.has(checkLimits) {
		all = append(all, attachments)
	}
	if args.has(checkAgents) {
		parsed, _ := args.parse(nil) // Validate has reported the problems.
		for _, agent := range parsed.agents {
			all = append(all, agent.daemons(), agent.pods())
		}
	}
	return all
}
