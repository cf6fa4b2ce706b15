// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"sync"
)

// turns serializes the updates of each key, so that binds in one replica do not conflict
// with each other.
type turns[K comparable] struct {
	mu sync.Mutex
	of map[K]*turn
}

type turn struct {
	taken chan struct{}
	users int
}

// take waits until the caller can update the key. It returns the cause of the context if the
// context ends first.
func (t *turns[K]) take(ctx context.Context, key K) (done func(), err error) {
	t.mu.Lock()
	mine := t.of[key]
	if mine == nil {
		mine = &turn{taken: make(chan struct{}, 1)}
		t.of[key] = mine
	}
	mine.users++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if mine.users--; mine.users == 0 {
			delete(t.of, key)
		}
	}
	select {
	case mine.taken <- struct{}{}:
		return func() {
			<-mine.taken
			leave()
		}, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}
