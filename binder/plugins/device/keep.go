// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/ledger"
)

// PostBind gives the grant to the pod and releases the node lock. It reads the pod after the record: if the pod has ended
// since then and another one was granted its devices, the write fails, and an ended pod gets no grant back.
func (p *Plugin) PostBind(ctx context.Context, bc *framework.BindContext) error {
	return p.records.Update(ctx, bc.Node.Name, func(rec *record, live bool) (bool, error) {
		pod, err := framework.Get(ctx, p.h.Live, &corev1.Pod{}, bc.Pod.Namespace, bc.Pod.Name)
		if err != nil {
			return false, err
		}
		changed := rec.unlock(bc.Pod.UID, "")
		switch whereaboutsOf(pod, bc.Pod.UID, bc.Node.Name) {
		case framework.Pending:
			// The engine has seen the pod bound, so this response is outdated. The mark remains.
			return false, errors.New("the API server returned an outdated pod: pending, but already seen bound")
		case framework.BoundHere:
			changed = rec.bind(pod, grantOf(pod)) || changed
		default:
			changed = rec.drop(bc.Pod.UID) || changed
		}
		if !changed && !live {
			return false, errUnsure
		}
		return changed, nil
	})
}

// Marks lists the attempts whose grants and locks PostBind has not confirmed. Its cost
// depends on their number, not on the number of records.
func (p *Plugin) Marks(ctx context.Context) ([]framework.Mark, error) {
	found, err := p.records.List(ctx, p.h.Cached, client.MatchingFields{unconfirmedIndex: unconfirmedKey})
	var marks []framework.Mark
	for _, v := range found {
		marks = append(marks, v.Record.marks()...)
	}
	return marks, err
}

// tidyNodes is the number of records that one call of Tidy visits. With 5,000 nodes, Tidy
// visits every record within twenty minutes. Binds do not wait for it, because a bind
// releases the devices that it requests from pods that no longer exist.
const tidyNodes = 500

// Tidy removes the grants of pods that are gone or finished, and deletes empty records. Each
// call visits tidyNodes records and continues after the last call. It must not be called
// concurrently.
func (p *Plugin) Tidy(ctx context.Context) error {
	return p.records.Visit(ctx, tidyNodes, func(ctx context.Context, v *ledger.Version[*record]) error {
		if err := p.tidy(ctx, v); err != nil {
			return fmt.Errorf("cleaning up the device record of node %s: %w", v.Record.Node, err)
		}
		return nil
	})
}

// tidy cleans up one record, which can be outdated.
func (p *Plugin) tidy(ctx context.Context, v *ledger.Version[*record]) error {
	if v.Record.empty() {
		if err := p.records.Delete(ctx, v); !errors.Is(err, ledger.ErrChanged) {
			return err
		}
		return nil
	}
	bound := v.Record.boundPods()
	if len(bound) == 0 {
		return nil
	}
	running, err := runningOn(ctx, p.h.Live, v.Record.Node)
	stale := bound.Difference(running)
	if err != nil || len(stale) == 0 {
		return err
	}
	return p.records.Update(ctx, v.Record.Node, func(now *record, _ bool) (bool, error) {
		changed := false
		for uid := range stale {
			// The pod was bound before the pods were listed, and cannot be bound again.
			changed = now.drop(uid) || changed
		}
		return changed, nil
	})
}
