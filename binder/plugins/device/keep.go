// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/ledger"
)

// PostBind gives the grant to the pod and releases the node lock.
func (p *Plugin) PostBind(ctx context.Context, m framework.Mark, bound *corev1.Pod) error {
	return p.records.Update(ctx, m.Node, func(rec *record) error {
		rec.unlock(m.PodUID, "")
		says := grantOf(bound)
		if rec.Entries[m.PodUID] == nil && len(rec.conflicts(m.PodUID, says.Devices)) > 0 {
			return nil // The pod has ended since it was read, and its devices were granted to another one.
		}
		rec.bind(bound, says)
		return nil
	})
}

// Marks lists the attempts whose grants and locks PostBind has not confirmed. Its cost
// depends on their number, not on the number of records.
func (p *Plugin) Marks(ctx context.Context) ([]framework.Mark, error) {
	found, err := p.records.List(ctx, p.h.Cached, unconfirmedKey)
	var marks []framework.Mark
	for _, v := range found {
		marks = append(marks, v.Record.marks()...)
	}
	return marks, err
}

// component is the ledger.Kind.Component of the records. unconfirmedKey is the value of those that can have marks, and
// confirmedKey that of all others.
const (
	component      = "prebind-device-record"
	unconfirmedKey = "true"
	confirmedKey   = "false"
)

// confirmedText occurs in every bound entry, and in no other entry that decode accepts:
// their other values are objects, lists and strings, and quotes in strings are escaped.
const confirmedText = `"bound":true`

// unconfirmed is the ledger.Kind.Value of the records. The cache holds a lock while it
// calls the function for each change, so the function does not decode the record. It never
// misses a record with marks, but can select one without.
func unconfirmed(o client.Object) string {
	object, ok := o.(*corev1.ConfigMap)
	if !ok {
		return confirmedKey
	}
	for key, text := range object.Data {
		if key != nodeField && (key == lockField || !strings.Contains(text, confirmedText)) {
			return unconfirmedKey
		}
	}
	return confirmedKey
}

// Tidy removes the grants of pods that are gone or finished, adds those of pods that were bound without this plugin, for example in mode Audit
// during a rollout, and deletes empty records. It must not be called concurrently. Binds do not wait for it, because a bind releases the
// devices that it requests from pods that no longer exist.
func (p *Plugin) Tidy(ctx context.Context) error {
	all, err := p.records.List(ctx, p.h.Cached, confirmedKey)
	unconfirmed, more := p.records.List(ctx, p.h.Cached, unconfirmedKey)
	nodes := sets.New[string]()
	for _, v := range append(all, unconfirmed...) {
		nodes.Insert(v.Record.Node)
	}
	return errors.Join(err, more, p.round.Visit(ctx, nodes, p.tidy))
}

// tidy cleans up the record of a node. The cached record can be outdated.
func (p *Plugin) tidy(ctx context.Context, node string) error {
	v, err := p.records.Get(ctx, p.h.Cached, node)
	if v == nil {
		return err
	}
	if v.Record.empty() {
		if err := p.records.Delete(ctx, v); !errors.Is(err, ledger.ErrChanged) {
			return err
		}
		return nil
	}
	bound, unknown := v.Record.boundPods(), map[*corev1.Pod]grant{}
	err = eachRunningOn(ctx, p.h.Live, node, func(metadata *metav1.PartialObjectMetadata) {
		bound.Delete(metadata.UID)
		pod := &corev1.Pod{ObjectMeta: metadata.ObjectMeta}
		if g := grantOf(pod); len(g.Devices) > 0 && v.Record.Entries[pod.UID] == nil {
			unknown[pod] = g
		}
	})
	if err == nil && len(bound) > 0 {
		err = p.records.Update(ctx, node, func(rec *record) error {
			for uid := range bound {
				// The pod was bound before the pods were listed, and cannot be bound again.
				rec.drop(uid)
			}
			return nil
		})
	}
	if err != nil || len(unknown) == 0 {
		return err
	}
	return p.records.Update(ctx, node, func(rec *record) error { // Not with the removals, because the record can be full.
		for pod, g := range unknown {
			if rec.Entries[pod.UID] == nil { // The cached record can be behind.
				rec.bind(pod, g)
			}
		}
		return nil
	})
}
