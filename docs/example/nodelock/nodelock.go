// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodelock is an example of a PreBind plugin that writes something that has to be undone.
// It binds one pod at a time to a node, for device managers that identify a pod by its bind.
//
// The lock is an annotation on the Node with the pod and the attempt that hold it, so that every
// replica can release it if the replica of the attempt no longer exists.
package nodelock

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// Name of the plugin.
const Name = "nodelock"

// Annotation is the annotation of a locked Node.
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

// holder is the value of the annotation.
type holder struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	UID       string `json:"uid"`
	Attempt   string `json:"attempt"`
}

func holderFor(m framework.Mark) holder {
	return holder{Namespace: m.Pod.Namespace, Pod: m.Pod.Name, UID: string(m.PodUID), Attempt: m.Attempt}
}

// Name implements framework.Plugin.
func (*plugin) Name() string { return Name }

// PreFlight takes the lock if it is free, or if an earlier attempt for the same pod holds it. That
// attempt was in another replica, which finds that it no longer holds the lock.
func (*plugin) PreFlight(bc *framework.BindContext) (framework.Verdict, error) {
	switch mine, held := holderFor(bc.Mark()), heldBy(bc.Node); {
	case held == mine:
		return framework.Verdict{}, nil
	case held == holder{} || held.UID == mine.UID:
		return framework.Verdict{Writes: []string{"lock the node"}}, nil
	default:
		return framework.Verdict{Wait: framework.Wait{
			Object: object(bc.Node.Name), For: fmt.Sprintf("pod %s/%s to release its lock", held.Namespace, held.Pod),
		}}, nil
	}
}

// PreBind takes the lock, unless the node has changed since PreFlight: then the bind waits for the change.
func (p *plugin) PreBind(ctx context.Context, bc *framework.BindContext) error {
	if err := p.write(ctx, bc.Node, holderFor(bc.Mark())); err != nil {
		return framework.FromAPI(object(bc.Node.Name), "locking it", err)
	}
	return nil
}

// PreBindRollBack releases the lock if this attempt holds it.
func (p *plugin) PreBindRollBack(ctx context.Context, m framework.Mark) error {
	return p.release(ctx, m)
}

// PostBind releases the lock, because the pod is bound. If that fails, the mark remains, and Prebind
// calls PostBind again.
func (p *plugin) PostBind(ctx context.Context, m framework.Mark, _ *corev1.Pod) error {
	return p.release(ctx, m)
}

// Marks lists the locks.
func (p *plugin) Marks(ctx context.Context) ([]framework.Mark, error) {
	var nodes corev1.NodeList
	if err := p.h.Cached.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	var marks []framework.Mark
	for i := range nodes.Items {
		node := &nodes.Items[i]
		if held := heldBy(node); held.Namespace != "" && held.Pod != "" && held.UID != "" {
			marks = append(marks, framework.Mark{
				Pod:    client.ObjectKey{Namespace: held.Namespace, Name: held.Pod},
				PodUID: types.UID(held.UID), Node: node.Name, Attempt: held.Attempt,
			})
		}
	}
	return marks, nil
}

// release releases the lock if this attempt holds it. It reads the node from the API server, because the cache can be behind.
func (p *plugin) release(ctx context.Context, m framework.Mark) error {
	for {
		node := &corev1.Node{}
		err := p.h.Live.Get(ctx, client.ObjectKey{Name: m.Node}, node)
		if apierrors.IsNotFound(err) || err == nil && heldBy(node) != holderFor(m) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := p.write(ctx, node, holder{}); !apierrors.IsConflict(err) {
			return err
		}
	}
}

// write sets the lock if the node has not changed since it was read. The zero holder releases the
// lock.
func (p *plugin) write(ctx context.Context, node *corev1.Node, h holder) error {
	changed := node.DeepCopy()
	if h == (holder{}) {
		delete(changed.Annotations, Annotation)
	} else {
		value, err := json.Marshal(h)
		if err != nil {
			return err
		}
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, Annotation, string(value))
	}
	return p.h.Writer.Patch(ctx, changed, client.MergeFromWithOptions(node, client.MergeFromWithOptimisticLock{}))
}

// heldBy returns the holder of the lock, or the zero holder if the lock is free or invalid.
func heldBy(node *corev1.Node) holder {
	var h holder
	if err := json.Unmarshal([]byte(node.Annotations[Annotation]), &h); err != nil {
		return holder{}
	}
	return h
}

func object(node string) framework.Object { return framework.Object{Kind: "Node", Name: node} }
