// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"fmt"
	"slices"
	"strings"
)

// Checks are the optional checks. The plugin always checks that the node exists and is not
// being deleted.
type Checks struct {
	// Ready: the node's condition Ready is True, or the pod tolerates the taints of a node
	// that is not ready.
	Ready bool
	// Schedulable: the node is not cordoned, as in kube-scheduler's NodeUnschedulable.
	Schedulable bool
	// Taints: the pod tolerates the node's NoSchedule and NoExecute taints, as in
	// kube-scheduler's TaintToleration.
	Taints bool
	// Affinity: the pod's nodeSelector and required node affinity match the node, as in
	// kube-scheduler's NodeAffinity.
	Affinity bool
}

// check is one of the Checks and its name.
type check struct {
	name string
	set  func(c *Checks)
}

// checks contains all checks in the order in which the plugin runs them.
var checks = []check{
	{name: "ready", set: func(c *Checks) { c.Ready = true }},
	{name: "schedulable", set: func(c *Checks) { c.Schedulable = true }},
	{name: "taints", set: func(c *Checks) { c.Taints = true }},
	{name: "affinity", set: func(c *Checks) { c.Affinity = true }},
}

// CheckNames returns the names of all checks; the caller owns the slice.
func CheckNames() []string {
	var names []string
	for _, k := range checks {
		names = append(names, k.name)
	}
	return names
}

// ParseChecks returns the checks with these names. The error for an unknown name lists the
// known ones.
func ParseChecks(names []string) (Checks, error) {
	var c Checks
	for _, name := range names {
		i := slices.IndexFunc(checks, func(k check) bool { return k.name == name })
		if i < 0 {
			return Checks{}, fmt.Errorf("unknown check %q, must be one of: %s", name, strings.Join(CheckNames(), ", "))
		}
		checks[i].set(&c)
	}
	return c, nil
}
