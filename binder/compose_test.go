// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/mutation"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/test/gen"
)

// needy is a required mutator. It needs the label a of the node, and the devices of claims.
type needy struct{}

func (needy) Name() string { return "needy" }

func (needy) Mutate(in mutators.Input) (mutators.Output, error) {
	if _, ok := in.Node.Labels["a"]; !ok {
		return mutators.Output{}, errors.New("no label a")
	}
	return mutators.Output{}, in.DevicesErr
}

// A rejection by a mutator counts only after the cache has led to it for Settle, and one for an unread claim does not count.
func TestBind_RequiredMutator(t *testing.T) {
	var unread atomic.Pointer[framework.Error]
	requiring := func(o *Options) {
		o.Settings.Mutators = mutation.NewChain([]mutators.Mutator{needy{}}, []string{"needy"})
		o.Settings.Claimed = func(context.Context, *corev1.Pod) ([]mutators.Device, error) {
			if err := unread.Load(); err != nil {
				return nil, fmt.Errorf("claim gpu of the pod: %w", err)
			}
			return nil, nil
		}
	}
	label := func(s *fixture) { s.server.Put(gen.Node("node-a", gen.UID("node-1"), gen.Label("a", ""))) }
	in(t, requiring, func(t *testing.T, s *fixture) {
		time.AfterFunc(Settle/2, func() { label(s) })
		assert.Nil(t, s.post(t.Context()).Err)
	})
	in(t, requiring, func(t *testing.T, s *fixture) {
		began := time.Now()
		d := s.post(t.Context())
		assert.Equal(t, framework.KindRefuse, d.Err.Kind)
		assert.Len(t, d.Failures, 1, "the metric counts it")
		assert.Equal(t, Settle, time.Since(began))
		assert.Zero(t, s.post(t.Context(), dryRun).RetryAfter)
		assert.Equal(t, Settle, time.Since(began), "a dry run does not wait")
	})
	in(t, requiring, func(t *testing.T, s *fixture) {
		label(s)
		s.pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("gpu")}}
		s.server.Put(s.pod)
		unread.Store(framework.FromAPI(framework.Object{}, "reading the claim", apierrors.NewTooManyRequests("busy", 1)))
		time.AfterFunc(3*Settle, func() { unread.Store(nil) })
		assert.Nil(t, s.post(t.Context()).Err)
	})
}

// A node that was deleted and recreated is never used as it was, also if only a live read has found it.
func TestBind_RecreatedNodeNotCached(t *testing.T) {
	in(t, func(o *Options) { o.Cached = withoutNodes{o.Cached} }, func(t *testing.T, s *fixture) {
		time.AfterFunc(500*time.Millisecond, func() { s.server.Put(gen.Node("node-a", gen.UID("another"))) })
		time.AfterFunc(1500*time.Millisecond, func() {
			changed := s.pod.DeepCopy()
			changed.Labels = map[string]string{"go": ""}
			s.server.Put(changed)
		})
		d := s.post(t.Context())
		require.NotNil(t, d.Err)
		assert.Contains(t, d.Err.Error(), "deleted and recreated")
	}, framework.NewPlugin("go", func(_ context.Context, _ framework.Reader, bc *framework.BindContext) (framework.Verdict, error) {
		if _, ok := bc.Pod.Labels["go"]; ok {
			return framework.Verdict{}, nil
		}
		return framework.Verdict{Wait: framework.Wait{For: "the label"}}, nil
	}))
}

// withoutNodes is a cache that lacks all nodes.
type withoutNodes struct{ framework.Reader }

func (r withoutNodes) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	if _, ok := into.(*corev1.Node); ok {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, key.Name)
	}
	return r.Reader.Get(ctx, key, into, opts...)
}
