// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bindinfo is the mutator that tells a pod how it was bound, as
// annotations bind-info.<domain>/<key>:
//
//	user       who posted the Binding, as system:kube-scheduler
//	scheduler  the scheduler that the pod asks for
//	time       when it was bound, as 2026-01-31T12:00:00Z
//	calls      how often the Binding was posted, as 1
//	waited     the time since it was first posted, as 0.000s or 12.345s
//	attempt    the attempt that prepared the bind; absent where none had to
//
// A fact that is empty gives no annotation.
package bindinfo

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/prebind/prebind/mutators"
)

// Name of the mutator.
const Name = "bind-info"

// maxRunes caps what others name: a user's name may be of any length.
const maxRunes = 256

// changing are the keys that differ when a Binding is posted again.
var changing = []string{"time", "calls", "waited", "attempt"}

// Mutator tells about the bind; see New.
type Mutator struct{}

var _ mutators.Mutator = Mutator{}

// New returns the mutator. It has no options.
func New() Mutator { return Mutator{} }

// Name implements mutators.Mutator.
func (Mutator) Name() string { return Name }

// Mutate returns what is known of the bind.
func (Mutator) Mutate(in mutators.Input) (mutators.Output, error) {
	annotations := make(map[string]string, 6)
	add := func(key, value string) {
		if value != "" {
			annotations[key] = value
		}
	}
	add("user", clean(in.User.Username))
	add("scheduler", clean(in.Pod.Spec.SchedulerName))
	add("time", in.Bind.At.UTC().Format(time.RFC3339))
	add("calls", strconv.Itoa(in.Bind.Calls))
	add("waited", seconds(in.Bind.Waited))
	add("attempt", clean(in.Bind.Attempt))
	return mutators.Output{Annotations: annotations, Changing: changing}, nil
}

// seconds always has the milliseconds, so that all of them are read by one
// pattern. The clock may have been set back; no one waited less than not at all.
func seconds(d time.Duration) string {
	ms := max(d, 0).Milliseconds()
	return fmt.Sprintf("%d.%03ds", ms/1000, ms%1000)
}

// clean makes an annotation value of any string: valid UTF-8, and cut to
// maxRunes, the last of which is then an ellipsis.
func clean(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	runes, last := 0, 0
	for i := range s {
		if runes++; runes == maxRunes {
			last = i
		}
		if runes > maxRunes {
			return s[:last] + "…"
		}
	}
	return s
}
