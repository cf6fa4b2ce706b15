// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/ledger"
)

// PostBind gives the pod its grant, and releases the lock. If that fails, the mark stays
// and the sweep repeats it.
func (p *Plugin) PostBind(ctx context.Context, bc *framework.BindContext) {
	if err := p.confirmBound(ctx, bc); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to confirm a grant of devices, the sweep retries it", "node", bc.Node.Name)
	}
}

func (p *Plugin) confirmBound(ctx context.Context, bc *framework.BindContext) error {
	pod, err := framework.Get(ctx, p.h.Live, &corev1.Pod{}, bc.Pod.Namespace, bc.Pod.Name)
	if err != nil {
		return err
	}
	at := whereaboutsOf(pod, bc.Pod.UID, bc.Node.Name)
	if at == framework.Pending {
		// The engine saw the pod bound, so this answer is old. The mark stays.
		return errors.New("the API server returned an outdated pod: pending, but already seen bound")
	}
	return p.records.Update(ctx, bc.Node.Name, func(rec *record, live bool) (bool, error) {
		changed := rec.unlock(bc.Pod.UID, "")
		if at == framework.BoundHere {
			changed = rec.bind(pod, grantOf(pod)) || changed
		} else {
			changed = rec.drop(bc.Pod.UID) || changed
		}
		if !changed && !live {
			return false, errUnsure
		}
		return changed, nil
	})
}

// Marks lists the attempts whose grants and locks PostBind has not confirmed. The cost
// depends on their number, not on the number of records.
func (p *Plugin) Marks(ctx context.Context) ([]framework.Mark, error) {
	found, err := p.records.List(ctx, p.h.Cached, client.MatchingFields{unconfirmedIndex: unconfirmedKey})
	var marks []framework.Mark
	for _, v := range found {
		marks = append(marks, v.Record.marks()...)
	}
	return marks, err
}

// tidyNodes is how many records one call of Tidy visits. With 5,000 nodes, it visits every
// record within twenty minutes. No bind waits for it: a bind that asks for the device of a
// pod that is gone frees the device itself.
const tidyNodes = 500

// Tidy takes back what pods were granted that are gone or finished, and deletes records
// that hold nothing. A call visits tidyNodes records, and the next call continues after
// them. One goroutine calls it.
func (p *Plugin) Tidy(ctx context.Context) error {
	return p.records.Visit(ctx, tidyNodes, func(ctx context.Context, v *ledger.Version[*record]) error {
		if err := p.tidy(ctx, v); err != nil {
			return fmt.Errorf("cleaning up the device record of node %s: %w", v.Record.Node, err)
		}
		return nil
	})
}

// tidy does it for one record, which can be old.
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
			// It was bound before the pods were listed, and never is again.
			changed = now.drop(uid) || changed
		}
		return changed, nil
	})
}
