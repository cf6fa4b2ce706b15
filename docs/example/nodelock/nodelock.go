// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodelock is an example of a PreBind plugin from outside of Prebind. It
// lets one pod at a time be bound to a node, as device managers want it that find
// out which pod is meant by looking for the one that is being bound.
//
// The lock is an annotation on the Node. It says whose it is, so that any replica
// can see it, and release it when the one that took it is gone.
package nodelock

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// Name of the plugin.
const Name = "nodelock"

// Annotation on a Node that is locked.
const Annotation = "nodelock.example.com/held-by"

// Registration is the entry for app.WithPlugin. Prebind needs the permission to patch
// nodes for it.
func Registration() framework.Registration {
	return framework.Registration{
		Name:        Name,
		Description: "lets one pod at a time be bound to a node",
		On:          true,
		New: func(h framework.Handle, _ framework.Arguments) (framework.PreBinder, error) {
			return &plugin{h}, nil
		},
	}
}

type plugin struct{ h framework.Handle }

var (
	_ framework.PreBinder  = (*plugin)(nil)
	_ framework.RollBacker = (*plugin)(nil)
	_ framework.PostBinder = (*plugin)(nil)
	_ framework.Recoverer  = (*plugin)(nil)
)

// holder is the annotation's value.
type holder struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	UID       string `json:"uid"`
	Attempt   string `json:"attempt"`
}

func holderFor(bc *framework.BindContext) holder {
	return holder{Namespace: bc.Pod.Namespace, Pod: bc.Pod.Name, UID: string(bc.Pod.UID), Attempt: bc.Attempt}
}

// Name implements framework.PreBinder.
func (*plugin) Name() string { return Name }

// PreBind takes the lock, when it is free. A lock that an earlier attempt of the
// same pod holds is taken over: that attempt was another replica's, which is gone
// or will find that the lock is not its own any more.
func (p *plugin) PreBind(ctx context.Context, bc *framework.BindContext) error {
	mine := holderFor(bc)
	take := func(ctx context.Context, _ framework.Reader) (framework.Waiting, error) {
		node, held, err := p.read(ctx, bc.Node.Name)
		switch {
		case apierrors.IsNotFound(err):
			return framework.Waiting{}, framework.Refuse(object(bc.Node.Name), "the node is gone").Because(err).Advise("choose another")
		case err != nil:
			return framework.Waiting{}, framework.FromAPI(object(bc.Node.Name), "reading it", err)
		case held == mine:
			return framework.Waiting{}, nil
		case held == holder{} || held.UID == mine.UID:
			if err := p.write(ctx, node, mine); err != nil {
				return framework.Waiting{}, framework.FromAPI(object(bc.Node.Name), "locking it", err)
			}
			return framework.Waiting{}, nil
		}
		return framework.Waiting{Object: object(node.Name), For: fmt.Sprintf("the lock that pod %s/%s holds on it", held.Namespace, held.Pod)}, nil
	}
	return framework.Await(ctx, p.h, bc, take, framework.RefTo(&corev1.Node{}, "", bc.Node.Name))
}

// PreBindRollBack releases the lock if it is this attempt's.
func (p *plugin) PreBindRollBack(ctx context.Context, bc *framework.BindContext) error {
	released, err := p.release(ctx, bc)
	if released {
		bc.Undid("released the lock of the node")
	}
	return err
}

// PostBind releases the lock: the pod is bound. Where that fails, the sweep does
// it, for the mark stays.
func (p *plugin) PostBind(ctx context.Context, bc *framework.BindContext) {
	if _, err := p.release(ctx, bc); err != nil {
		klog.FromContext(ctx).Error(err, "The node stays locked", "node", bc.Node.Name)
	}
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

// release says whether there was something to release.
func (p *plugin) release(ctx context.Context, bc *framework.BindContext) (bool, error) {
	for {
		node, held, err := p.read(ctx, bc.Node.Name)
		if apierrors.IsNotFound(err) || err == nil && held != holderFor(bc) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if err := p.write(ctx, node, holder{}); !apierrors.IsConflict(err) {
			return err == nil, err
		}
	}
}

// read asks the API server: a lock is no matter for a cache.
func (p *plugin) read(ctx context.Context, name string) (*corev1.Node, holder, error) {
	node := &corev1.Node{}
	if err := p.h.Live.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return nil, holder{}, err
	}
	return node, heldBy(node), nil
}

// write changes the lock, on the condition that nobody has changed the node since
// it was read. The zero holder releases it.
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

// heldBy returns the zero holder for a lock that is free, or that somebody wrote
// who does not know its form: it counts as free.
func heldBy(node *corev1.Node) holder {
	var h holder
	if err := json.Unmarshal([]byte(node.Annotations[Annotation]), &h); err != nil {
		return holder{}
	}
	return h
}

func object(node string) framework.Object { return framework.Object{Kind: "Node", Name: node} }
