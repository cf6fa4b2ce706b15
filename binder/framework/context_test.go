// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestExtensions(t *testing.T) {
	bc := &BindContext{}
	number := NewExtensionKey[int]("p/number")
	_, err := number.Get(bc)
	require.ErrorContains(t, err, `"p/number"`, "the error names an extension that was not set")

	number.Set(bc, 1)
	number.Set(bc, 2)
	got, err := number.Get(bc)
	require.NoError(t, err)
	assert.Equal(t, 2, got, "the last value counts")

	text := NewExtensionKey[string]("p/number")
	_, err = text.Get(bc)
	require.ErrorContains(t, err, "int", "Get returns an error for a value of another type")

	_, err = NewExtensionKey[int]("q/number").Get(bc)
	require.Error(t, err, "keys with different names do not share a value")

	_, err = number.Get(&BindContext{})
	require.Error(t, err, "binds do not share extensions")
}

func TestExtensions_InterfaceType(t *testing.T) {
	bc := &BindContext{}
	key := NewExtensionKey[error]("p/err")
	key.Set(bc, errRaw)
	got, err := key.Get(bc)
	require.NoError(t, err)
	assert.Equal(t, errRaw, got)
	NewExtensionKey[int]("p/err").Set(bc, 1)
	_, err = key.Get(bc)
	require.Error(t, err)
}

func TestWaitingAndIntents(t *testing.T) {
	bc := &BindContext{}
	assert.Equal(t, Waiting{}, bc.ReportedWait())
	bc.ReportWait(Waiting{Object: claim, For: "a volume"})
	assert.Equal(t, Waiting{Object: claim, For: "a volume"}, bc.ReportedWait())

	assert.Empty(t, bc.Intents())
	bc.Intend("write %s", "a")
	bc.Intend("write b")
	intents := bc.Intents()
	assert.Equal(t, []string{"write a", "write b"}, intents, "Intents returns the intents in order")
	intents[0] = "changed"
	assert.Equal(t, "write a", bc.Intents()[0], "the caller owns the slice")
}

// The race detector checks this test.
func TestBindContext_IsSafeForConcurrentUse(t *testing.T) {
	bc := &BindContext{}
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			key := NewExtensionKey[int]("p/" + strconv.Itoa(i%4))
			for range 100 {
				key.Set(bc, i)
				if _, err := key.Get(bc); err != nil {
					assert.NoError(t, err)
					return
				}
				bc.ReportWait(Waiting{For: strconv.Itoa(i)})
				_ = bc.ReportedWait()
				bc.Intend("%d", i)
			}
		})
	}
	group.Wait()
	assert.Len(t, bc.Intents(), 800)
}
