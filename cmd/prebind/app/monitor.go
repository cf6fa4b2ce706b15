// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// lookEvery is the pause between two looks at the API server, and lookAgain the
	// one after a look that failed.
	lookEvery = 10 * time.Second
	lookAgain = time.Second
	// lookTakes is what one look may take.
	lookTakes = 5 * time.Second
	// unreachableAfter is how long the API server may be away before this replica is
	// not ready: a restart is over sooner.
	unreachableAfter = 10 * time.Second
	// deniedAfter is how long a permission may be missing before this replica is not
	// ready. An API server that has just started knows of no permission, and where a
	// plugin is switched off together with its role, the kubelet brings the new
	// configuration within about a minute.
	deniedAfter = 90 * time.Second
	// askEvery is the pause between two looks at the permissions, and askAgain the one
	// after a look that found one missing.
	askEvery = 30 * time.Second
	askAgain = 3 * time.Second
)

// monitor keeps an eye on what Prebind lives by, the API server and its own
// permissions, and tells readiness and the log what is wrong.
type monitor struct {
	// reach returns why the API server cannot be reached, or nil, within lookTakes.
	reach  func() error
	grants grants
	ready  *readiness
	clock  clock.Clock
	// needs are those of the settings in force.
	needs atomic.Pointer[[]needs]
	// denied is since when a permission has been missing; nil if none is.
	denied *time.Time
	// lost is what was last said of each thing, so that it is said once.
	lost map[string]string
}

func newMonitor(reach func() error, g grants, ready *readiness, c clock.Clock) *monitor {
	return &monitor{reach: reach, grants: g, ready: ready, clock: c, lost: map[string]string{}}
}

// expect sets the permissions that are looked at from now on.
func (m *monitor) expect(parts []needs) { m.needs.Store(&parts) }

// Start implements manager.Runnable.
func (m *monitor) Start(ctx context.Context) error {
	seen, asked := m.clock.Now(), m.clock.Now()
	for {
		pause := lookEvery
		if err := m.reach(); err != nil {
			pause = lookAgain
			if away := m.clock.Since(seen); away > unreachableAfter {
				m.report("API server", fmt.Errorf("the API server does not answer, for %s: %w", away.Round(time.Second), err), "the API server does not answer")
			}
		} else {
			seen = m.clock.Now()
			m.report("API server", nil, "")
			if m.denied != nil || m.clock.Since(asked) >= askEvery {
				asked = seen
				m.ask(ctx)
			}
			if m.denied != nil {
				pause = askAgain
			}
		}
		timer := m.clock.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
	}
}

// ask looks at the permissions. A no counts only when it stays.
func (m *monitor) ask(ctx context.Context) {
	parts := m.needs.Load()
	if parts == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookTakes)
	defer cancel()
	err := m.grants.checkAll(ctx, *parts)
	if err == nil {
		m.denied = nil
		m.report("permissions", nil, "")
		return
	}
	if m.denied == nil {
		m.denied = new(m.clock.Now())
		klog.InfoS("A permission is missing: this replica will not be ready if that stays so", "after", deniedAfter, "reason", err.Error())
	}
	if m.clock.Since(*m.denied) > deniedAfter {
		m.report("permissions", err, err.Error())
	}
}

// report tells readiness, and the log where the text is another than before.
func (m *monitor) report(what string, err error, text string) {
	m.ready.report(what, err)
	if m.lost[what] == text {
		return
	}
	m.lost[what] = text
	if err != nil {
		klog.ErrorS(err, "Not ready any more: calls should go to another replica")
		return
	}
	klog.InfoS("What this replica was not ready for is over", "what", what)
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: every replica looks
// for itself.
func (*monitor) NeedLeaderElection() bool { return false }
