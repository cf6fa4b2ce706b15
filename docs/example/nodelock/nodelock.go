// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodelock is an example of a PreBind plugin that writes something that has to be undone.
// It binds one pod at a time to a node, for device managers that identify a pod by its bind.
//
// The lock is an annotation on the Node with the marks of the attempts that hold it: one, or one of each
// replica that works on the bind of the pod. The lock is free when the last mark is gone. So every replica
// can release it if the replica of an attempt no longer exists.
package nodelock

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// Name of the plugin.
const Name = "nodelock"

// Annotation is the annotation of a locked Node. Its value is a JSON list of framework.Mark.
const Annotation = "nodelock.example.com/held-by"

// Registration returns the entry for app.WithPlugin. The plugin needs permission to patch nodes.
func Registration() framework.Registration {
	return framework.Registration{
		Name:        Name,
		Description: "binds one pod at a time to a node",
		On:          true,
		New: func(h framework.Handle, _ framework.Arguments) (framework.Plugin, error) {
			return &plugin{h}, nil
		},
	}
}

type plugin struct{ h framework.Handle }

var _ framework.PreBinder = (*plugin)(nil)

// Name implements framework.Plugin.
func (*plugin) Name() string { return Name }

// PreFlight requests the lock, unless this attempt has it, or another pod has it.
func (*plugin) PreFlight(bc *framework.BindContext) (framework.Verdict, error) {
	marks := marksOn(bc.Node)
	for _, m := range marks {
		if m.PodUID != bc.Pod.UID {
			return framework.Verdict{Wait: framework.Wait{
				Object: object(bc.Node.Name), For: fmt.Sprintf("pod %s to release its lock", m.Pod),
			}}, nil
		}
	}
	if slices.Contains(marks, bc.Mark()) {
		return framework.Verdict{}, nil
	}
	return framework.Verdict{Writes: []string{"lock the node"}}, nil
}

// PreBind adds the mark to those of the pod's other attempts. If the node has changed since PreFlight,
// the write conflicts, and the bind waits.
func (p *plugin) PreBind(ctx context.Context, bc *framework.BindContext) error {
	if err := p.write(ctx, bc.Node, append(marksOn(bc.Node), bc.Mark())); err != nil {
		return framework.FromAPI(object(bc.Node.Name), "locking it", err)
	}
	return nil
}

// PreBindRollBack removes the mark. Another attempt can have been allowed, so its mark remains.
func (p *plugin) PreBindRollBack(ctx context.Context, m framework.Mark) error {
	return p.release(ctx, m)
}

// PostBind removes the mark, because the pod is bound. If that fails, the mark remains, and Prebind
// calls PostBind again.
func (p *plugin) PostBind(ctx context.Context, m framework.Mark, _ *corev1.Pod) error {
	return p.release(ctx, m)
}

// Marks lists the marks of all locks.
func (p *plugin) Marks(ctx context.Context) ([]framework.Mark, error) {
	var nodes corev1.NodeList
	if err := p.h.Cached.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	var marks []framework.Mark
	for i := range nodes.Items {
		marks = append(marks, marksOn(&nodes.Items[i])...)
	}
	return marks, nil
}

// release removes the mark. It reads the node from the API server, because the cache can be behind.
func (p *plugin) release(ctx context.Context, m framework.Mark) error {
	for {
		node := &corev1.Node{}
		if err := p.h.Live.Get(ctx, client.ObjectKey{Name: m.Node}, node); err != nil {
			return client.IgnoreNotFound(err)
		}
		marks := marksOn(node)
		i := slices.Index(marks, m)
		if i < 0 {
			return nil
		}
		if err := p.write(ctx, node, slices.Delete(marks, i, i+1)); !apierrors.IsConflict(err) {
			return err
		}
	}
}

// write sets the marks if the node has not changed since it was read. No marks release the lock.
func (p *plugin) write(ctx context.Context, node *corev1.Node, marks []framework.Mark) error {
	changed := node.DeepCopy()
	if len(marks) == 0 {
		delete(changed.Annotations, Annotation)
	} else {
		value, err := json.Marshal(marks)
		if err != nil {
			return err
		}
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, Annotation, string(value))
	}
	return p.h.Writer.Patch(ctx, changed, client.MergeFromWithOptions(node, client.MergeFromWithOptimisticLock{}))
}

// marksOn returns the marks of the node's lock, or nil if the lock is free or invalid.
func marksOn(node *corev1.Node) []framework.Mark {
	var marks []framework.Mark
	if err := json.Unmarshal([]byte(node.Annotations[Annotation]), &marks); err != nil {
		return nil
	}
	return slices.DeleteFunc(marks, func(m framework.Mark) bool { return m.PodUID == "" || m.Node != node.Name })
}

func object(node string) framework.Object { return framework.Object{Kind: "Node", Name: node} }
