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

// records returns all records of a context that a repeated decision replaces.
func records(bc *BindContext) []any {
	return []any{bc.Annotations(), bc.CompleteAnnotations(), bc.Labels(), bc.Warnings(), bc.Findings(), bc.Intents(), bc.ExpectedWaits()}
}

func record(bc *BindContext, value string) {
	bc.Annotate("p", "a", value)
	bc.SetAnnotation("p", "example.com/a", value)
	bc.SetLabel("p", "example.com/l", value)
	bc.Warn("it is %s", value)
	bc.Found(Finding{Name: "rule", Verdict: value})
	bc.Intend("write %s", value)
	bc.ExpectWait(Waiting{For: value})
}

func TestBindContext_Restore(t *testing.T) {
	bc := &BindContext{}
	assert.Nil(t, bc.Labels())
	empty := bc.Checkpoint()
	record(bc, "1")
	first, want := bc.Checkpoint(), records(bc)
	assert.Equal(t, map[string]map[string]string{"p": {"example.com/l": "1"}}, bc.Labels())
	assert.Equal(t, []string{"it is 1"}, bc.Warnings())
	bc.Labels()["p"]["example.com/l"], bc.Warnings()[0], bc.Findings()[0].Name = "x", "x", "x"
	assert.Equal(t, want, records(bc), "the caller owns what is returned")
	record(bc, "2")
	assert.NotEqual(t, want, records(bc))
	bc.Restore(first)
	assert.Equal(t, want, records(bc))
	bc.Restore(empty)
	for _, kind := range records(bc) {
		assert.Empty(t, kind)
	}
}

// The last decision of a wait replaces values and adds warnings. Its findings and intents are those of a dry run.
func TestBindContext_Adopt(t *testing.T) {
	bc, later := &BindContext{}, &BindContext{}
	record(bc, "1")
	bc.SetLabel("p", "example.com/other", "kept")
	record(later, "2")
	NewExtensionKey[int]("p").Set(later, 2)
	bc.adopt(later)
	assert.Equal(t, map[string]map[string]string{"p": {"a": "2"}}, bc.Annotations())
	assert.Equal(t, map[string]map[string]string{"p": {"example.com/a": "2"}}, bc.CompleteAnnotations())
	assert.Equal(t, map[string]map[string]string{"p": {"example.com/l": "2", "example.com/other": "kept"}}, bc.Labels())
	assert.Equal(t, []string{"it is 1", "it is 2"}, bc.Warnings())
	assert.Len(t, bc.Findings(), 1)
	got, err := NewExtensionKey[int]("p").Get(bc)
	require.NoError(t, err)
	assert.Equal(t, 2, got)
	later.SetLabel("p", "example.com/l", "3")
	assert.Equal(t, "2", bc.Labels()["p"]["example.com/l"], "the contexts share no maps")
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
				bc.SetLabel("p", "k", strconv.Itoa(i))
				bc.Warn("%d", i)
				_ = bc.Warnings()
				_ = bc.Labels()
			}
		})
	}
	group.Wait()
	assert.Len(t, bc.Intents(), 800)
}
