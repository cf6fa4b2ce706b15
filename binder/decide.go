// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"slices"
	"time"

	"github.com/prebind/prebind/binder/framework"
)

// action is what a call does after a pass.
type action int

const (
	// allow the bind: no plugin writes, waits or rejects. Plugins with late writes reserve first.
	allow action = iota
	// write calls PreBind of plugins.
	write
	// wait for a change.
	wait
	// reject the bind, unless the cache can be behind.
	reject
	// repeat the pass at once.
	repeat
	// finish the call: with the error, or with the answer.
	finish
)

// step is what a call does next.
type step struct {
	do action
	// plugins are the indexes of the plugins to write or to reserve.
	plugins []int
	// err is that of reject and finish, and answer is that of finish without an error.
	err    *framework.Error
	answer Decision
	// waits are what the call waits for, plugin whose first wait it is, and until when the next pass
	// is due without a change. Zero means never.
	waits  []framework.Wait
	plugin string
	until  time.Time
}

// first returns the first wait.
func (s step) first() framework.Wait {
	if len(s.waits) == 0 {
		return framework.Wait{}
	}
	return s.waits[0]
}

// end returns the end of a call that cannot wait any longer.
func (s step) end(err *framework.Error) step { return step{do: finish, err: err, waits: s.waits} }

// ends returns the step after an error of the engine.
func ends(err *framework.Error) step {
	if err.Kind == framework.KindRefuse || err.Kind == framework.KindInvalid {
		return step{do: reject, err: err}
	}
	return step{do: finish, err: err}
}

// decide returns the next step by the results of a pass. asked are the plugins whose PreBind was
// called since the last change. decide is pure.
//
// A plugin that still has to write after its PreBind waits for the cache to show what it wrote, or writes again: what it now writes for can have
// changed before the call subscribed. An error of the kind Wait is a wait. Plugins with late writes have their turn when no other plugin writes
// or waits.
func decide(results []result, asked map[string]bool) step {
	var writes, late []int
	first := false
	s := step{do: wait}
	waits := func(plugin string, w framework.Wait) {
		if len(s.waits) == 0 || w.First {
			s.plugin = plugin
		}
		if w.First { // Users see it before the wait for what is not written yet.
			first, s.waits = true, slices.Insert(s.waits, 0, w)
		} else {
			s.waits = append(s.waits, w)
		}
		if !w.Until.IsZero() && (s.until.IsZero() || w.Until.Before(s.until)) {
			s.until = w.Until
		}
	}
	for i, r := range results {
		name, v := r.plugin.Name(), r.verdict
		switch {
		case r.err != nil && r.err.Kind == framework.KindWait:
			waits(name, framework.Wait{Object: r.err.Object, For: r.err.Message})
		case r.err != nil:
			return step{do: reject, err: r.err}
		case v.Late && len(v.Writes) > 0:
			late = append(late, i)
		case len(v.Writes) > 0 && asked[name]:
			waits(name, framework.Wait{For: "the cache to show what the plugin wrote", Until: r.bc.Now.Add(readAgain)})
		case len(v.Writes) > 0:
			writes = append(writes, i)
		}
		if r.err == nil && v.Wait != (framework.Wait{}) {
			waits(name, v.Wait)
		}
	}
	if first {
		writes = slices.DeleteFunc(writes, func(i int) bool { return results[i].verdict.Permanent })
	}
	switch {
	case len(writes) > 0:
		return step{do: write, plugins: writes}
	case len(s.waits) > 0:
		return s
	default:
		return step{do: allow, plugins: late}
	}
}
