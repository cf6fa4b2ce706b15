// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/work"
	"github.com/prebind/prebind/test/fakeapi"
)

var (
	errCut = errors.New("connection refused")
)

// cuttable is a client whose writes fail while cut is set.
func cuttable(stored *fakeapi.Clientset, cut *atomic.Bool) kubernetes.Interface {
	c := &fake.Clientset{}
	c.AddReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if cut.Load() && a.GetVerb() != "list" {
			return true, nil, errCut
		}
		o, err := stored.Invokes(a, nil)
		return true, o, err
	})
	return c
}

func pass(d time.Duration) { <-time.After(d) }

// TestTrusted_Relations: the times of all replicas are consistent.
func TestTrusted_Relations(t *testing.T) {
	assert.LessOrEqual(t, trusted+framework.BindSettles, duration+work.Grace, "a bind is over before another replica rolls back")
	assert.Greater(t, trusted, (RequestTakes+renewal)+(2*RequestTakes+renewAgain)+RequestTakes, "a renewal may time out with and without the status, and the next one is in time")
	assert.Less(t, blind, duration, "old observations are discarded before they count")
	assert.Less(t, 2*observeEvery, blind)
}
