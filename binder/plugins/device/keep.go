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
)

// PostBind makes the grant the pod's own, and releases the lock. Where that fails,
// the sweep does it, for the mark stays.
func (p *Plugin) PostBind(ctx context.Context, bc *framework.BindContext) {
	if err := p.confirmBound(ctx, bc); err != nil {
		klog.FromContext(ctx).Error(err, "The grant of devices could not be confirmed, will be tried again", "node", bc.Node.Name)
	}
}

func (p *Plugin) confirmBound(ctx context.Context, bc *framework.BindContext) error {
	name := client.ObjectKeyFromObject(bc.Pod)
	pod, err := p.pod(ctx, name)
	if err != nil {
		return err
	}
	at := where(pod, bc.Pod.UID, bc.Node.Name)
	return p.records.update(ctx, bc.Node.Name, func(rec *record, live bool) (bool, error) {
		changed := rec.unlock(bc.Pod.UID, "")
		switch at {
		case gone:
			changed = rec.drop(bc.Pod.UID) || changed
		case bound:
			says, _ := p.grantOf(pod)
			changed = rec.bind(pod, says) || changed
		case pending:
			// The pod that was seen bound is: this can only be a read of an API server
			// that is behind. The mark stays, and the sweep looks again.
			return false, errors.New("the pod is not seen to be bound any more")
		}
		if !changed && !live {
			return false, errLookAgain
		}
		return changed, nil
	})
}

// Marks lists what attempts were granted, and locked, that PostBind has not
// confirmed.
func (p *Plugin) Marks(ctx context.Context) ([]framework.Mark, error) {
	records, err := p.records.unconfirmed(ctx)
	var marks []framework.Mark
	for _, rec := range records {
		marks = append(marks, rec.marks()...)
	}
	return marks, err
}

// tidyNodes is how many records one call of Tidy looks at. With 5,000 nodes every record has its turn
// within twenty minutes. Nobody waits for it: a bind that asks for the device of a pod that is gone
// frees the device itself.
const tidyNodes = 500

// Tidy takes back what pods were granted that are gone or finished, and deletes records that hold
// nothing. A call looks at tidyNodes records, and the next call goes on behind them. It is for one
// caller at a time.
func (p *Plugin) Tidy(ctx context.Context) error {
	objects, err := p.records.next(ctx, p.tidied, tidyNodes)
	errs := []error{err}
	for _, object := range objects {
		if ctx.Err() != nil {
			errs = append(errs, context.Cause(ctx))
			break
		}
		p.tidied = object.Name
		errs = append(errs, p.tidy(ctx, object))
	}
	return errors.Join(errs...)
}

// tidy does it for one record.
func (p *Plugin) tidy(ctx context.Context, object *corev1.ConfigMap) error {
	rec, err := decode(object)
	if err != nil {
		return err
	}
	if err := p.tidyRecord(ctx, rec); err != nil {
		return fmt.Errorf("tidying the devices of node %s: %w", rec.Node, err)
	}
	return nil
}

func (p *Plugin) tidyRecord(ctx context.Context, rec *record) error {
	if rec.empty() {
		return p.records.remove(ctx, rec)
	}
	if len(rec.boundPods()) == 0 {
		return nil
	}
	running, err := p.records.running(ctx, rec.Node)
	if err != nil {
		return err
	}
	stale := rec.boundPods().Difference(running)
	if len(stale) == 0 {
		return nil
	}
	return p.records.update(ctx, rec.Node, func(now *record, _ bool) (bool, error) {
		changed := false
		for uid := range stale {
			// It was bound when the pods were listed, and can never be again.
			changed = now.drop(uid) || changed
		}
		return changed, nil
	})
}
