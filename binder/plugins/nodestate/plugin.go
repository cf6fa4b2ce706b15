// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodestate is the PreBind plugin that checks the state of the node. Between the
// scheduler's decision and the bind, the node can be cordoned, tainted, relabelled, or
// deleted. The API server does not check this.
//
// For every bind, the plugin repeats the checks of kube-scheduler's node filters, and checks
// the expectations in annotations. It writes nothing. The decision is a pure function
// (decide.go) of the node.
package nodestate

import (
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/config/v1alpha1"
)

// Plugin checks nodes. It is safe for concurrent use.
type Plugin struct {
	checks  sets.Set[string]
	maxWait time.Duration
}

var _ framework.Plugin = (*Plugin)(nil)

// Name implements framework.Plugin.
func (*Plugin) Name() string { return Name }

// PreFlight rejects the bind if the node does not pass all checks, or waits for it if an annotation requests that.
func (p *Plugin) PreFlight(bc *framework.BindContext) (framework.Verdict, error) {
	e, err := parse(framework.Parameters(Name, bc.Binding, bc.Pod), p.maxWait)
	if err != nil {
		return framework.Verdict{}, err
	}
	f, err := judge(bc.Pod, bc.Node, e, p.checks)
	switch {
	case err != nil || len(f) == 0:
		return framework.Verdict{}, err
	case e.wait == 0:
		return framework.Verdict{}, framework.Refuse(framework.ObjectOf(bc.Node), "%s", f).
			Advise("choose another node, or wait for this one with the annotation %s.%s/%s", Name, v1alpha1.Domain, keyWait)
	}
	wait, err := bc.AtMost(e.wait, framework.Wait{Object: framework.ObjectOf(bc.Node), For: f.awaited()}, "choose another node")
	return framework.Verdict{Wait: wait}, err
}
