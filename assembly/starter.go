// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prebind/prebind/binder/framework"
)

// syncInterval is the time between two calls of HasSynced.
const syncInterval = 50 * time.Millisecond

// starter is a manager.Runnable that runs a framework.Starter until its instance is retired.
type starter struct {
	framework.Starter
	plugin  string
	retired <-chan struct{}
	// failed receives the error of Start until settled is closed.
	failed  chan error
	settled chan struct{}
}

// start starts the plugin. If the manager runs, start waits until the plugin can decide. Otherwise, readiness waits
// for it.
func (a *Assembly) start(ctx context.Context, plugin string, p framework.Starter, retired <-chan struct{}) error {
	s := &starter{Starter: p, plugin: plugin, retired: retired, failed: make(chan error), settled: make(chan struct{})}
	defer close(s.settled)
	if err := a.o.Manager.Add(s); err != nil {
		return err
	}
	if !a.runs() {
		a.o.WaitFor("PreBind plugin "+plugin, func() bool { return p.HasSynced() || isClosed(retired) })
		return nil
	}
	for !p.HasSynced() {
		select {
		case err := <-s.failed:
			return err
		case <-ctx.Done():
			return errors.New("it has not read in time what it needs to decide")
		case <-a.o.Manager.selections.clock.After(syncInterval):
		}
	}
	return nil
}

// Start implements manager.Runnable. If Start of the plugin fails after start has returned, the process ends.
func (s *starter) Start(ctx context.Context) error {
	ctx, cancel := until(ctx, s.retired)
	defer cancel()
	err := s.Starter.Start(ctx)
	if err == nil || ctx.Err() != nil {
		return nil
	}
	select {
	case s.failed <- err:
		return nil
	case <-s.settled:
		return fmt.Errorf("plugin %s: %w", s.plugin, err)
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*starter) NeedLeaderElection() bool { return false }
