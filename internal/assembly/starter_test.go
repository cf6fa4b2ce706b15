// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/prebind/prebind/binder/framework"
)

// started is a plugin with a goroutine of its own.
type started struct {
	kept
	synced atomic.Bool
	began  chan struct{}
	// fail ends Start with an error.
	fail chan error
}

func (s *started) Start(ctx context.Context) error {
	close(s.began)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-s.fail:
		return err
	}
}

func (s *started) HasSynced() bool { return s.synced.Load() }

// starts returns the plugin test and its registration.
func starts() (*started, framework.Registration) {
	s := &started{kept: kept{name: "test"}, began: make(chan struct{}), fail: make(chan error, 1)}
	r := keeping(s.name)
	r.New = func(framework.Handle, framework.Arguments) (framework.Plugin, error) { return s, nil }
	return s, r
}

// Readiness waits for the plugin.
func TestStarter(t *testing.T) {
	p, r := starts()
	a := newAssembly(t, r)
	var waits []func() bool
	a.o.WaitFor = func(_ string, synced func() bool) { waits = append(waits, synced) }
	configured(t, a)
	require.Len(t, waits, 1)
	select {
	case <-p.began:
		t.Error("its caches do not run yet")
	default:
	}
	run(t, a)
	<-p.began
	assert.False(t, waits[0]())
	p.synced.Store(true)
	assert.True(t, waits[0]())
}

// The plugin starts when its selections have all objects.
func TestStarter_Selections(t *testing.T) {
	server := newServer(t)
	server.installed.Store(true)
	p, r := starts()
	r.Selections = func(string, framework.Arguments) []framework.Selection {
		return []framework.Selection{{Name: "test/gadgets", Example: newGadget("", "", ""), Handler: toolscache.ResourceEventHandlerFuncs{AddFunc: func(any) {
			select {
			case <-p.began:
				t.Error("the plugin has started before")
			default:
			}
		}}}}
	}
	server.gadgets = append(server.gadgets, newGadget("shop", "a", "r1"), newGadget("shop", "b", "r1"))
	a := newAssemblyAt(t, server, r)
	configured(t, a)
	run(t, a)
	<-p.began
	assert.Len(t, namesIn(t, a.Cached(), framework.Selection{Name: "test/gadgets"}, ""), 2)
}

// If Start of a plugin fails, the process ends.
func TestStarter_Fails(t *testing.T) {
	p, r := starts()
	a := newAssembly(t, r)
	configured(t, a)
	broken := errors.New("broken")
	p.fail <- broken
	err := a.Start(t.Context())
	require.ErrorIs(t, err, broken)
	assert.ErrorContains(t, err, "plugin test")
}
