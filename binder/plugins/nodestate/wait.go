// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"context"

	"github.com/prebind/prebind/binder/framework"
)

// wait returns nil when the node is as it has to be, or the error that ends the
// wait. It looks when something changed, and only then.
func (p *Plugin) wait(ctx context.Context, bc *framework.BindContext, e expectations) error {
	changes := p.o.Changes.Subscribe(framework.Key{Kind: "Node", Name: bc.Node.Name})
	defer changes.Close()
	over := p.o.Clock.NewTimer(e.wait)
	defer over.Stop()
	for {
		f, err := p.look(ctx, p.o.Cached, bc, e)
		if err != nil || f.final() != nil {
			// The cache alone ends nothing, for it may be behind.
			f, err = p.look(ctx, p.o.Live, bc, e)
		}
		switch {
		case err != nil:
			return err
		case f.none():
			return nil
		case f.final() != nil:
			return p.refuse(bc, f, "")
		}
		bc.Waiting(framework.Waiting{Object: objectOf(bc), For: f.awaited()})
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changes.C():
		case <-over.C():
			return p.lastLook(ctx, bc, e)
		}
	}
}

// lastLook decides at the end of a wait, by the API server: an event may still be
// on its way.
func (p *Plugin) lastLook(ctx context.Context, bc *framework.BindContext, e expectations) error {
	f, err := p.look(ctx, p.o.Live, bc, e)
	switch {
	case err != nil:
		return err
	case f.none():
		return nil
	case f.final() != nil:
		return p.refuse(bc, f, "")
	}
	return framework.Refuse(objectOf(bc), "after a wait of %s: %s", e.wait, f).Advise("choose another node")
}
