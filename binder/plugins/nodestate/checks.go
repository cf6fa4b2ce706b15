// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"fmt"
	"slices"
	"strings"
)

// Checks are the checks that an operator can switch. The zero Checks are none of
// them; that the node exists and is not being deleted is checked in any case.
type Checks struct {
	// Ready: the node's Ready condition is True, or the pod tolerates the taints
	// of a node that is not.
	Ready bool
	// Schedulable: the node is not cordoned, as kube-scheduler's NodeUnschedulable
	// has it.
	Schedulable bool
	// Taints: the pod tolerates the node's NoSchedule and NoExecute taints, as
	// kube-scheduler's TaintToleration has it.
	Taints bool
	// Affinity: the pod's nodeSelector and required node affinity admit the node,
	// as kube-scheduler's NodeAffinity has it.
	Affinity bool
}

// check is one of them by its name.
type check struct {
	name string
	set  func(c *Checks)
}

// checks are in the order in which they are made.
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

// ParseChecks returns the checks of these names; no names are no checks. An
// unknown name is an error that lists the known ones.
func ParseChecks(names []string) (Checks, error) {
	var c Checks
	for _, name := range names {
		i := slices.IndexFunc(checks, func(k check) bool { return k.name == name })
		if i < 0 {
			return Checks{}, fmt.Errorf("there is no check %q; there are %s", name, strings.Join(CheckNames(), ", "))
		}
		checks[i].set(&c)
	}
	return c, nil
}
