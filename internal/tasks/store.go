// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package tasks

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/podstate"
	"github.com/prebind/prebind/policy/v1alpha1"
)

// Store writes BindTasks. It is safe for concurrent use, apart from Tidy.
type Store struct {
	h framework.Handle
	// round belongs to Tidy.
	round podstate.Round
}

// NewStore returns a store. It sends no requests.
func NewStore(h framework.Handle) *Store { return &Store{h: h} }

// PreBind creates the BindTasks that the bind needs and lacks, and joins those of other attempts. They stay until no attempt relies on them: another
// replica can have allowed the bind, and the API server can still bind the pod.
func (s *Store) PreBind(ctx context.Context, bc *framework.BindContext, asked []Asked) error {
	for i := range asked {
		a := &asked[i]
		if !a.state(bc).writes {
			continue
		}
		var err error
		if a.Found == nil {
			err = s.h.Writer.Create(ctx, a.bindTask(bc.Mark()))
		} else {
			err = s.setAttempts(ctx, a.Found, append(slices.Clone(a.Found.Spec.Attempts), bc.Attempt))
		}
		switch {
		case apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
			return framework.NotYet(a.object(), "the cache to show it")
		case err != nil:
			return framework.FromAPI(a.object(), "writing it", err)
		}
	}
	return nil
}

// bindTask returns the BindTask of the task.
func (a *Asked) bindTask(m framework.Mark) *v1alpha1.BindTask {
	t := &v1alpha1.BindTask{
		ObjectMeta: metav1.ObjectMeta{Name: a.name},
		Spec: v1alpha1.BindTaskSpec{
			Policy: a.Policy, Task: a.Name, Handler: a.Handler, NodeName: m.Node, Retain: a.Retain, Attempts: []string{m.Attempt},
			Pod: v1alpha1.PodReference{Namespace: m.Pod.Namespace, Name: m.Pod.Name, UID: m.PodUID},
		},
	}
	for key, value := range a.Parameters {
		if t.Spec.Parameters == nil {
			t.Spec.Parameters = map[string]v1alpha1.ParameterValue{}
		}
		t.Spec.Parameters[key] = v1alpha1.ParameterValue(value)
	}
	return t
}

// setAttempts writes the attempts, if the BindTask has not changed. Without attempts, it is confirmed.
func (s *Store) setAttempts(ctx context.Context, t *v1alpha1.BindTask, attempts []string) error {
	changed := t.DeepCopy()
	changed.Spec.Attempts = attempts
	return s.h.Writer.Patch(ctx, changed, client.MergeFromWithOptions(t, client.MergeFromWithOptimisticLock{}))
}

// remove deletes the BindTask, if it has not changed. Its handler then undoes the step.
func (s *Store) remove(ctx context.Context, t *v1alpha1.BindTask) error {
	if t.DeletionTimestamp != nil {
		return nil
	}
	return client.IgnoreNotFound(s.h.Writer.Delete(ctx, t, client.Preconditions{UID: &t.UID, ResourceVersion: &t.ResourceVersion}))
}

// marksOf returns the marks of a BindTask: one for each attempt.
func marksOf(t *v1alpha1.BindTask) []framework.Mark {
	marks := make([]framework.Mark, len(t.Spec.Attempts))
	for i, attempt := range t.Spec.Attempts {
		pod := client.ObjectKey{Namespace: t.Spec.Pod.Namespace, Name: t.Spec.Pod.Name}
		marks[i] = framework.Mark{Pod: pod, PodUID: t.Spec.Pod.UID, Node: t.Spec.NodeName, Attempt: attempt}
	}
	return marks
}

// PreBindRollBack removes the attempt from the BindTasks with the mark, and deletes those that have no other: another attempt can have been allowed,
// also if the BindTask has failed since then. It lists them from the API server,
// because the cache can lack the last ones.
func (s *Store) PreBindRollBack(ctx context.Context, m framework.Mark) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error { // A handler writes the status.
		var all v1alpha1.BindTaskList
		if err := s.h.Live.List(ctx, &all, client.MatchingFields{"spec.pod.uid": string(m.PodUID)}); err != nil {
			return fmt.Errorf("listing the BindTasks of the pod: %w", err)
		}
		return s.each(all.Items, m, func(t *v1alpha1.BindTask) error {
			if others := slices.DeleteFunc(slices.Clone(t.Spec.Attempts), func(a string) bool { return a == m.Attempt }); len(others) > 0 {
				return client.IgnoreNotFound(s.setAttempts(ctx, t, others))
			}
			return s.remove(ctx, t)
		})
	})
}

// PostBind confirms or deletes the BindTasks with the mark, as the policy says. The bind was allowed, so the cache has had them.
func (s *Store) PostBind(ctx context.Context, m framework.Mark, _ *corev1.Pod) error {
	all, err := s.list(ctx, m.PodUID)
	if err != nil {
		return err
	}
	return s.each(all, m, func(t *v1alpha1.BindTask) error {
		if t.Spec.Retain == v1alpha1.RetainUntilBound {
			return s.remove(ctx, t)
		}
		return client.IgnoreNotFound(s.setAttempts(ctx, t, nil))
	})
}

// each calls the function for the BindTasks with the mark, and joins the errors.
func (s *Store) each(all []v1alpha1.BindTask, m framework.Mark, do func(*v1alpha1.BindTask) error) error {
	var errs []error
	for i := range all {
		if t := &all[i]; t.Spec.Pod.UID == m.PodUID && slices.Contains(marksOf(t), m) {
			if err := do(t); err != nil {
				errs = append(errs, fmt.Errorf("BindTask %s: %w", t.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// Marks lists the marks of the unconfirmed BindTasks. Only Prebind writes attempts.
func (s *Store) Marks(ctx context.Context) ([]framework.Mark, error) {
	all, err := s.list(ctx, "")
	var marks []framework.Mark
	for i := range all {
		if t := &all[i]; t.DeletionTimestamp == nil {
			marks = append(marks, marksOf(t)...)
		}
	}
	return marks, err
}

// list reads the BindTasks of the pod from the cache, or all if the UID is empty.
func (s *Store) list(ctx context.Context, pod types.UID) ([]v1alpha1.BindTask, error) {
	var all v1alpha1.BindTaskList
	by := Selection
	if pod == "" {
		by.Value = nil
	}
	err := s.h.Cached.List(ctx, &all, by.Where(string(pod)), client.UnsafeDisableDeepCopy)
	return all.Items, err
}

// Tidy deletes the BindTasks of pods that have ended. It must not be called concurrently.
func (s *Store) Tidy(ctx context.Context) error {
	all, err := s.list(ctx, "")
	byNode := map[string][]*v1alpha1.BindTask{}
	for i := range all {
		if t := &all[i]; len(t.Spec.Attempts) == 0 {
			byNode[t.Spec.NodeName] = append(byNode[t.Spec.NodeName], t)
		}
	}
	return errors.Join(err, s.round.Visit(ctx, sets.KeySet(byNode), func(ctx context.Context, node string) error { return s.tidy(ctx, node, byNode[node]) }))
}

// tidy deletes the BindTasks of pods that do not run on the node. A BindTask is confirmed after its pod was bound, so the list contains each pod
// that runs.
func (s *Store) tidy(ctx context.Context, node string, all []*v1alpha1.BindTask) error {
	running := sets.New[types.UID]()
	err := podstate.EachRunningOn(ctx, s.h.Live, node, func(pod *metav1.PartialObjectMetadata) { running.Insert(pod.UID) })
	if err != nil {
		return fmt.Errorf("listing the pods of node %s: %w", node, err)
	}
	var errs []error
	for _, t := range all {
		if !running.Has(t.Spec.Pod.UID) {
			errs = append(errs, s.remove(ctx, t))
		}
	}
	return errors.Join(errs...)
}
