// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/test/gen"
)

var errUnread = errors.New("no")

func skipping(*framework.BindContext) (framework.Next, error) {
	return framework.Skip, nil
}

func TestPlugin_Annotates(t *testing.T) {
	cases := map[string]struct {
		reason    string
		preFlight func(bc *framework.BindContext)
		preBind   func(bc *framework.BindContext)
		next      framework.Next
		want      map[string]string
		kind      framework.Kind
	}{
		"InPreFlight": {
			reason: "a plugin whose PreBind is skipped annotates in PreFlight", next: framework.Skip,
			preFlight: func(bc *framework.BindContext) { bc.Annotate("p", "seen", "1") },
			want:      map[string]string{"p.prebind.dev/seen": "1"},
		},
		"InPreBind": {
			reason:    "an annotation of PreBind replaces that of PreFlight",
			preFlight: func(bc *framework.BindContext) { bc.Annotate("p", "a", "1"); bc.Annotate("p", "b", "1") },
			preBind:   func(bc *framework.BindContext) { bc.Annotate("p", "a", "2") },
			want:      map[string]string{"p.prebind.dev/a": "2", "p.prebind.dev/b": "1"},
		},
		"ForeignName": {
			reason: "a plugin cannot write keys of another one", next: framework.Skip,
			preFlight: func(bc *framework.BindContext) { bc.Annotate("q", "a", "1") },
			kind:      framework.KindInternal,
		},
		"BadKey": {
			reason: "an invalid key is a failure of the plugin", next: framework.Skip,
			preFlight: func(bc *framework.BindContext) { bc.Annotate("p", "no good", "1") },
			kind:      framework.KindInternal,
		},
		"BadKeyInPreBind": {
			reason:  "the writes are rolled back",
			preBind: func(bc *framework.BindContext) { bc.Annotate("p", "a/b", "1") },
			kind:    framework.KindInternal,
		},
		"TooMuch": {
			reason:  "metadata that blocks updates of the pod is rejected",
			preBind: func(bc *framework.BindContext) { bc.Annotate("p", "a", strings.Repeat("x", 256<<10)) },
			kind:    framework.KindInvalid,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &checker{plugin: plugin{name: "p"}}
				p.preFlight = func(bc *framework.BindContext) (framework.Next, error) {
					if tc.preFlight != nil {
						tc.preFlight(bc)
					}
					return tc.next, nil
				}
				p.preBind = func(_ context.Context, bc *framework.BindContext) error {
					if tc.preBind != nil {
						tc.preBind(bc)
					}
					return nil
				}
				e := engineWith(t, p)
				d := e.Bind(t.Context(), theRequest())
				require.Equal(t, tc.kind, kindOf(d.Err), tc.reason)
				if tc.kind != "" {
					pass(time.Second)
					assert.Equal(t, p.preBinds.Load(), p.rollBacks.Load(), "every started plugin is rolled back within a second")
					return
				}
				delete(d.Annotations, "binder.prebind.dev/attempt")
				assert.Equal(t, tc.want, d.Annotations, tc.reason)
			})
		})
	}
}

// TestPlugin_AnnotatesInLaterRounds: the last PreBind of a plugin replaces its annotations.
func TestPlugin_AnnotatesInLaterRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, other := &plugin{name: "p"}, &checker{plugin: plugin{name: "other"}}
		p.preBind = func(_ context.Context, bc *framework.BindContext) error {
			if bc.Binding.Annotations["p.prebind.dev/pin"] == "" {
				bc.Annotate("p", "pin", "pod")
			}
			return nil
		}
		other.preBind = func(_ context.Context, bc *framework.BindContext) error {
			bc.Annotate("other", "round", "1")
			return nil
		}
		other.preFlight = func(*framework.BindContext) (framework.Next, error) {
			if other.preBinds.Load() > 0 {
				return framework.Skip, nil
			}
			return framework.Run, nil
		}
		e := newTestEngine(t, func(o *Options) { o.Settings.Plugins, o.Live = []framework.PreBinder{p, other}, holding(thePod) })
		first := e.Bind(t.Context(), theRequest())
		require.Nil(t, first.Err)
		assert.Equal(t, "pod", first.Annotations["p.prebind.dev/pin"])
		second := e.Bind(t.Context(), annotated("p.prebind.dev/pin", "binding"))
		require.Nil(t, second.Err)
		assert.NotContains(t, second.Annotations, "p.prebind.dev/pin", "the annotation of the Binding stays")
		assert.Equal(t, "1", second.Annotations["other.prebind.dev/round"], "a plugin that did not run again keeps its annotations")
	})
}

// TestMutators_ReadTheBind: mutators receive the devices that plugins found, and the calls and the
// wait of the bind.
func TestMutators_ReadTheBind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []mutators.Input
		w := newWaiter()
		p := &checker{plugin: plugin{name: "p"}, preFlight: func(bc *framework.BindContext) (framework.Next, error) {
			bc.Has(framework.Device{Request: "gpu", Name: "GPU-1"})
			return framework.Skip, nil
		}}
		e := newTestEngine(t, func(o *Options) {
			o.Settings.Plugins = []framework.PreBinder{p, w}
			o.Settings.Mutators = chain(t, mutatorFunc(func(in mutators.Input) (mutators.Output, error) {
				seen = append(seen, in)
				return mutators.Output{}, nil
			}))
		})
		require.Equal(t, framework.KindWait, kindOf(e.Bind(t.Context(), theRequest()).Err))
		begin := time.Now()
		answer := later(t.Context(), e, theRequest())
		synctest.Wait()
		pass(2 * time.Second)
		w.release <- nil
		d := <-answer
		require.Nil(t, d.Err)

		assert.Empty(t, seen[0].Devices)
		assert.Empty(t, seen[0].Bind.Attempt)
		assert.Equal(t, 1, seen[0].Bind.Calls)
		last := seen[len(seen)-1]
		assert.Equal(t, []framework.Device{{Request: "gpu", Name: "GPU-1"}}, last.Devices)
		assert.Equal(t, d.Annotations["binder.prebind.dev/attempt"], last.Bind.Attempt)
		assert.Equal(t, 2, last.Bind.Calls)
		assert.Equal(t, testHold+2*time.Second, last.Bind.Waited, "the time of the earlier call counts")
		assert.Equal(t, begin.Add(2*time.Second), last.Bind.At)
	})
}

// TestMutators_ClaimedDevices: devices of ResourceClaims are read for pods with claims.
func TestMutators_ClaimedDevices(t *testing.T) {
	withClaim := gen.Pod("web", gen.UID("pod-1"))
	withClaim.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}}
	for name, pod := range map[string]*corev1.Pod{"With": withClaim, "Without": thePod} {
		t.Run(name, func(t *testing.T) {
			var seen mutators.Input
			e := newTestEngine(t, func(o *Options) {
				o.Cached = holding(pod, theNode)
				o.Settings.Claimed = func(_ context.Context, pod *corev1.Pod) ([]framework.Device, error) {
					return []framework.Device{{Request: pod.Spec.ResourceClaims[0].Name, Driver: "d"}}, errUnread
				}
				o.Settings.Mutators = chain(t, mutatorFunc(func(in mutators.Input) (mutators.Output, error) {
					seen = in
					return mutators.Output{}, nil
				}))
			})
			require.Nil(t, e.Bind(t.Context(), theRequest()).Err, "the mutator handles the error")
			if name == "Without" {
				assert.Empty(t, seen.Devices)
				require.NoError(t, seen.DevicesErr)
				return
			}
			assert.Equal(t, []framework.Device{{Request: "gpu", Driver: "d"}}, seen.Devices)
			assert.Equal(t, errUnread, seen.DevicesErr)
		})
	}
}

// TestMutators_RunOncePerAnswer: mutators run once for the preview, which must succeed before any
// write, and once for the answer that allows the bind.
func TestMutators_RunOncePerAnswer(t *testing.T) {
	tests := map[string]struct {
		reason  string
		plugins func() []framework.PreBinder
		want    int
	}{
		"NoPlugin": {reason: "the preview is the answer", plugins: func() []framework.PreBinder { return nil }, want: 1},
		"NothingToDo": {reason: "without an attempt the preview is the answer", want: 1, plugins: func() []framework.PreBinder {
			return []framework.PreBinder{&checker{plugin: plugin{name: "p"}, preFlight: skipping}}
		}},
		"Attempt": {reason: "the answer has the annotation of the attempt", want: 2, plugins: func() []framework.PreBinder {
			return []framework.PreBinder{&plugin{name: "p"}, &confirmer{checker: checker{plugin: plugin{name: "c"}, preFlight: skipping}}}
		}},
		"Waits": {reason: "a call that must be repeated has no such answer", want: 1, plugins: func() []framework.PreBinder {
			return []framework.PreBinder{newWaiter()}
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				runs := 0
				e := newTestEngine(t, func(o *Options) {
					o.Settings.Plugins = tc.plugins()
					o.Settings.Mutators = chain(t, mutatorFunc(func(mutators.Input) (mutators.Output, error) {
						runs++
						return mutators.Output{}, nil
					}))
				})
				e.Bind(t.Context(), theRequest())
				synctest.Wait()
				assert.Equal(t, tc.want, runs, tc.reason)
			})
		})
	}
}

// TestMutators_RequiredFailsLate: the writes are rolled back at once if a required mutator fails
// after PreBind.
func TestMutators_RequiredFailsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		m := mutatorFunc(func(mutators.Input) (mutators.Output, error) {
			if calls++; calls > 1 { // After the preview.
				return mutators.Output{Missing: []string{"the node has no rack"}}, nil
			}
			return mutators.Output{}, nil
		})
		c, err := mutators.NewChain(mutators.Options{Mutators: []mutators.Mutator{m}, Required: []string{"test"}})
		require.NoError(t, err)
		p := &plugin{name: "p"}
		e := newTestEngine(t, func(o *Options) {
			o.Settings.Plugins, o.Settings.Mutators, o.Live = []framework.PreBinder{p}, c, holding(thePod)
		})
		d := e.Bind(t.Context(), theRequest())
		require.Equal(t, framework.KindRefuse, kindOf(d.Err))
		assert.Equal(t, "test", d.Err.Plugin)
		assert.Contains(t, d.Err.Error(), "the node has no rack")
		pass(time.Second)
		assert.EqualValues(t, 1, p.rollBacks.Load())
	})
}
