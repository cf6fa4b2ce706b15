// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/config/v1alpha1"
)

// started is a plugin with a goroutine of its own.
type started struct {
	kept
	synced atomic.Bool
	began  chan struct{}
	// ended is closed when Start returns. fail ends Start with an error.
	ended chan struct{}
	fail  chan error
}

func (s *started) Start(ctx context.Context) error {
	defer close(s.ended)
	close(s.began)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-s.fail:
		return err
	}
}

func (s *started) HasSynced() bool { return s.synced.Load() }

// starts is the registration of the plugin test, which sends each new instance.
func starts(instances chan<- *started) framework.Registration {
	const name = "test"
	r := keeping(name)
	r.New = func(h framework.Handle, _ framework.Arguments) (framework.PreBinder, error) {
		s := &started{kept: kept{name: name, retired: h.Retired}, began: make(chan struct{}), ended: make(chan struct{}), fail: make(chan error, 1)}
		instances <- s
		return s, nil
	}
	return r
}

// Before the manager runs, readiness waits for the plugin.
func TestStarter_BeforeTheManagerRuns(t *testing.T) {
	instances := make(chan *started, 10)
	a := newAssembly(t, granting(everything), starts(instances))
	var waits []func() bool
	a.o.WaitFor = func(_ string, synced func() bool) { waits = append(waits, synced) }
	configured(t, a, nil)
	p := <-instances
	require.Len(t, waits, 1)
	assert.False(t, waits[0]())
	assert.False(t, isClosed(p.began), "its caches do not run yet")
	run(t, a)
	<-p.began
	assert.False(t, waits[0]())
	p.synced.Store(true)
	assert.True(t, waits[0]())

	p.synced.Store(false)
	configured(t, a, func(c *v1alpha1.PrebindConfiguration) { c.PreBindPlugins = nil })
	<-p.ended
	assert.True(t, waits[0](), "readiness does not wait for a plugin that was switched off")
}

// While the manager runs, a new instance is in force only when it can decide.
func TestStarter_Replaced(t *testing.T) {
	instances := make(chan *started, 10)
	a := newAssembly(t, granting(everything), starts(instances))
	run(t, a)
	ctx := t.Context()
	settle := func(ctx context.Context, limit time.Duration) <-chan error {
		c := v1alpha1.Default(a.o.Registry.Components())
		setLimit(c, "test", limit)
		done := make(chan error, 1)
		go func() {
			_, err := a.plugins(ctx, c)
			done <- err
		}()
		return done
	}
	done := settle(ctx, time.Minute)
	first := <-instances
	<-first.began
	require.Empty(t, done, "the plugin cannot decide yet")
	first.synced.Store(true)
	require.NoError(t, <-done)
	a.Applied()

	done = settle(ctx, time.Second)
	failed := <-instances
	broken := errors.New("broken")
	failed.fail <- broken
	require.ErrorIs(t, <-done, broken)
	assert.True(t, isClosed(failed.retired))

	short, cancel := context.WithCancel(ctx)
	done = settle(short, time.Second)
	late := <-instances
	<-late.began
	cancel()
	require.ErrorContains(t, <-done, "plugin test: it has not read in time what it needs")
	<-late.ended
	a.Applied()
	assert.False(t, isClosed(first.retired), "the earlier instance stays in force")
	assert.False(t, isClosed(first.ended))

	done = settle(ctx, time.Second)
	second := <-instances
	second.synced.Store(true)
	require.NoError(t, <-done)
	assert.False(t, isClosed(first.ended), "the new configuration is not in force yet")
	a.Applied()
	<-first.ended
	assert.False(t, isClosed(second.ended))
}

// If another plugin of the new configuration fails, the new instances end.
func TestStarter_OtherFails(t *testing.T) {
	instances := make(chan *started, 10)
	other := keeping("other")
	other.New = func(framework.Handle, framework.Arguments) (framework.PreBinder, error) {
		return nil, errors.New("broken")
	}
	a := newAssembly(t, granting(everything), starts(instances), other)
	run(t, a)
	go func() {
		p := <-instances
		p.synced.Store(true)
		instances <- p
	}()
	_, err := a.plugins(t.Context(), v1alpha1.Default(a.o.Registry.Components()))
	require.ErrorContains(t, err, "plugin other: broken")
	p := <-instances
	<-p.ended
	assert.True(t, isClosed(p.retired))
	assert.Empty(t, a.built)
}

// If Start of a plugin in force fails, the process ends.
func TestStarter_FailsLater(t *testing.T) {
	instances := make(chan *started, 10)
	a := newAssembly(t, granting(everything), starts(instances))
	configured(t, a, nil)
	broken := errors.New("broken")
	(<-instances).fail <- broken
	err := a.o.Manager.Start(t.Context())
	require.ErrorIs(t, err, broken)
	assert.ErrorContains(t, err, "plugin test")
}
