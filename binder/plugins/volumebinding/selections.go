// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/volumes"
)

// Selections records when this replica first observed the selected node of an unbound claim.
// Provisioning begins at that time, whichever replica wrote the annotation, so all replicas
// know how long a bind has been waiting. Times are those of this process's clock.
//
// It follows the events of an informer; add it as an event handler of
// PersistentVolumeClaims. It has one entry for each claim that is being provisioned. It is
// safe for concurrent use.
type Selections struct {
	clock clock.PassiveClock
	mu    sync.Mutex
	of    map[cache.ObjectName]selection
}

type selection struct {
	uid  types.UID
	node string
	at   time.Time
}

var _ cache.ResourceEventHandler = (*Selections)(nil)

// NewSelections returns a Selections that has seen no claim.
func NewSelections(c clock.PassiveClock) *Selections {
	return &Selections{clock: c, of: map[cache.ObjectName]selection{}}
}

// OnAdd implements cache.ResourceEventHandler. It ignores the initial list, because the time of
// the selection is unknown.
func (s *Selections) OnAdd(object any, initial bool) {
	if !initial {
		s.OnUpdate(nil, object)
	}
}

// OnUpdate implements cache.ResourceEventHandler. An object of another type is a packed, bound
// claim; see volumes.PackClaim.
func (s *Selections) OnUpdate(before, object any) {
	claim, ok := object.(*corev1.PersistentVolumeClaim)
	if !ok || volumes.IsBound(claim) || claim.Annotations[volume.AnnSelectedNode] == "" {
		s.OnDelete(object)
		return
	}
	if old, ok := before.(*corev1.PersistentVolumeClaim); ok && old.UID == claim.UID && old.Annotations[volume.AnnSelectedNode] == claim.Annotations[volume.AnnSelectedNode] {
		return
	}
	now := selection{uid: claim.UID, node: claim.Annotations[volume.AnnSelectedNode], at: s.clock.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[cache.MetaObjectToName(claim)] = now
}

// OnDelete implements cache.ResourceEventHandler.
func (s *Selections) OnDelete(object any) {
	name, err := cache.DeletionHandlingObjectToName(object)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, name)
}

// since returns the time at which the node was selected for the claim, or zero if unknown.
func (s *Selections) since(claim *corev1.PersistentVolumeClaim, node string) time.Time {
	if s == nil {
		return time.Time{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.of[cache.MetaObjectToName(claim)]
	if seen.uid != claim.UID || seen.node != node {
		return time.Time{}
	}
	return seen.at
}
