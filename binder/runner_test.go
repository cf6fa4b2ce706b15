// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder/attempt"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/seeds"
)

// Results of a method of a random plugin.
const (
	succeeds = iota
	fails
	refuses
	panics
	skips
	absent // The plugin does not implement PreFlight.
	failsOnce
	panicsOnce
)

// script has the results of the methods of a random plugin.
type script struct{ preFlight, preBind, rollBack int }

var errScripted = errors.New("as the script says")

func end(how int, name string) error {
	switch how {
	case fails:
		return errScripted
	case refuses:
		return fmt.Errorf("wrapped: %w", framework.Refuse(framework.Object{Kind: "Thing", Name: name}, "no"))
	case panics:
		panic("as the script says")
	default:
		return nil
	}
}

// scripted makes plugins p0, p1, … that record their calls as "p0 PreBind".
func scripted(scripts []script, happened *journal) []framework.PreBinder {
	var plugins []framework.PreBinder
	for i, s := range scripts {
		name := fmt.Sprintf("p%d", i)
		tries := 0
		base := &checker{
			plugin: plugin{
				name: name,
				preBind: func(context.Context, *framework.BindContext) error {
					happened.add(name + " PreBind")
					return end(s.preBind, name)
				},
				rollBack: func(context.Context, *framework.BindContext) error {
					tries++
					switch {
					case tries == 1 && s.rollBack == failsOnce:
						return errScripted
					case tries == 1 && s.rollBack == panicsOnce:
						panic("as the script says")
					}
					happened.add(name + " PreBindRollBack")
					return nil
				},
			},
			preFlight: func(*framework.BindContext) (framework.Next, error) {
				happened.add(name + " PreFlight")
				if s.preFlight == skips {
					return framework.Skip, nil
				}
				return framework.Run, end(s.preFlight, name)
			},
		}
		if s.preFlight == absent {
			plugins = append(plugins, &base.plugin)
		} else {
			plugins = append(plugins, base)
		}
	}
	return plugins
}

// wantFrom returns the kind of the error of a method with this result.
func wantFrom(how int) framework.Kind {
	switch how {
	case refuses:
		return framework.KindRefuse
	case fails, panics:
		return framework.KindInternal
	default:
		return ""
	}
}

func kindOf(err *framework.Error) framework.Kind {
	if err == nil {
		return ""
	}
	return err.Kind
}

// TestRunnerProperties compares the order of calls and the first failure of random plugins with a
// model. TestRollBackProperties checks the rollback.
func TestRunnerProperties(t *testing.T) {
	seed := seeds.Of(t, 1)[0]
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // The seed is not a secret.
	pick := func(outcomes ...int) int { return outcomes[random.IntN(len(outcomes))] }
	ctx := klog.NewContext(t.Context(), logr.Discard())

	e := newTestEngine(t, nil)
	for round := range 2000 {
		scripts := make([]script, random.IntN(7))
		for i := range scripts {
			scripts[i] = script{
				preFlight: pick(succeeds, succeeds, succeeds, skips, absent, fails, refuses, panics),
				preBind:   pick(succeeds, succeeds, succeeds, succeeds, fails, refuses, panics),
			}
		}
		// The model.
		var wantChecks, wantRun, wantCalls []string
		var wantCheck, wantBind framework.Kind
		var checkedBy, boundBy string
		var run []script
		for i, s := range scripts {
			name := fmt.Sprintf("p%d", i)
			if s.preFlight != absent {
				wantChecks = append(wantChecks, name+" PreFlight")
			}
			if wantCheck = wantFrom(s.preFlight); wantCheck != "" {
				// The live reader decides.
				wantChecks = append(wantChecks, name+" PreFlight")
				wantRun, checkedBy = nil, name
				break
			}
			if s.preFlight != skips {
				wantRun, run = append(wantRun, name), append(run, s)
			}
		}
		if wantCheck == "" {
			for i, s := range run {
				wantCalls = append(wantCalls, wantRun[i]+" PreBind")
				if wantBind = wantFrom(s.preBind); wantBind != "" {
					boundBy = wantRun[i]
					break
				}
			}
		}

		checks, calls := &journal{}, &journal{}
		c := &call{
			services: &e.services, Request: theRequest(), settings: &e.settings, pod: thePod, node: theNode,
			key: attempt.Key{Pod: thePod.UID, Node: theNode.Name}, plugins: scripted(scripts, checks),
		}
		bc := c.context("here-1")
		selected, err := c.preFlight(ctx, bc)
		note := fmt.Sprintf("round %d of seed %d: %+v", round, seed, scripts)
		require.Equal(t, wantCheck, kindOf(err), note)
		if err != nil {
			require.Equal(t, checkedBy, err.Plugin, note)
		}
		require.Equal(t, wantRun, names(selected), note)
		require.Equal(t, append([]string{}, wantChecks...), checks.all(), note)
		if wantCheck != "" {
			continue
		}

		var entered []string
		err = e.runner.PreBind(ctx, only(scripted(scripts, calls), wantRun), bc, func(p framework.PreBinder) { entered = append(entered, p.Name()) })
		require.Equal(t, wantBind, kindOf(err), note)
		if err != nil {
			require.Equal(t, boundBy, err.Plugin, note)
		}
		require.Equal(t, append([]string{}, wantCalls...), calls.all(), note)
		for i, name := range entered {
			require.Equal(t, name+" PreBind", calls.all()[i], "%s: the plugin is named before its call", note)
		}
	}
}

func names(plugins []framework.PreBinder) []string {
	var list []string
	for _, p := range plugins {
		list = append(list, p.Name())
	}
	return list
}

func only(plugins []framework.PreBinder, wanted []string) []framework.PreBinder {
	return slices.DeleteFunc(plugins, func(p framework.PreBinder) bool { return !slices.Contains(wanted, p.Name()) })
}
