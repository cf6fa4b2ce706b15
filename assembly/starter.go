// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"context"
	"fmt"

	"github.com/prebind/prebind/binder/framework"
)

// starter is a manager.Runnable that runs a framework.Starter.
type starter struct {
	framework.Starter
	plugin string
}

// start adds the plugin to the manager. Readiness waits until the plugin can decide.
func (a *Assembly) start(plugin string, p framework.Starter) error {
	a.o.WaitFor("PreBind plugin "+plugin, p.HasSynced)
	return a.o.Manager.Add(&starter{Starter: p, plugin: plugin})
}

// Start implements manager.Runnable. If Start of the plugin fails, the process ends.
func (s *starter) Start(ctx context.Context) error {
	if err := s.Starter.Start(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("plugin %s: %w", s.plugin, err)
	}
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*starter) NeedLeaderElection() bool { return false }
