// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package attempt

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// index finds attempts. The cost of each method is independent of the number of
// attempts. It is not safe for concurrent use.
type index struct {
	byKey map[Key]*Attempt
	byID  map[string]*Attempt
	// byPod holds the attempts for one pod, one for each node.
	byPod map[types.UID][]*Attempt
}

func newIndex() index {
	return index{byKey: map[Key]*Attempt{}, byID: map[string]*Attempt{}, byPod: map[types.UID][]*Attempt{}}
}

// add adds an attempt whose key is not in the index.
func (x *index) add(a *Attempt) {
	x.byKey[a.key], x.byID[a.id] = a, a
	x.byPod[a.key.Pod] = append(x.byPod[a.key.Pod], a)
}

// remove removes an attempt that was added.
func (x *index) remove(a *Attempt) {
	delete(x.byKey, a.key)
	delete(x.byID, a.id)
	if rest := slices.DeleteFunc(x.byPod[a.key.Pod], func(other *Attempt) bool { return other == a }); len(rest) > 0 {
		x.byPod[a.key.Pod] = rest
	} else {
		delete(x.byPod, a.key.Pod)
	}
}
