// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bindinfo is the mutator that adds information about the bind as annotations
// bind-info.prebind.dev/<key>:
//
//	user       the user that posted the Binding, such as system:kube-scheduler
//	scheduler  spec.schedulerName of the pod
//	time       the time of the bind, such as 2026-01-31T12:00:00Z
//	calls      the number of calls for the Binding, such as 1
//	waited     the time since the first call, such as 0.000s or 12.345s
//	attempt    the attempt that prepared the bind, if any
//
// The mutator omits annotations with empty values.
package bindinfo

import (
	"fmt"
	"strconv"
	"time"

	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/internal/text"
	"github.com/prebind/prebind/mutators"
)

// Name is the name of the mutator.
const Name = "bind-info"

// Registration returns the registry entry of the mutator.
func Registration() mutators.Registration {
	return mutators.Registration{
		Name:        Name,
		Description: "the bind: user, scheduler, time, number of calls, wait",
		New:         func(v1alpha1.Arguments) (mutators.Mutator, error) { return New(), nil },
	}
}

// maxValue is the maximum length of a value in bytes. The name of a user can have any length.
const maxValue = 256

// changing lists the keys whose values differ from call to call.
var changing = []string{"time", "calls", "waited", "attempt"}

// Mutator adds information about the bind; see New.
type Mutator struct{}

// New returns the mutator.
func New() Mutator { return Mutator{} }

// Name implements mutators.Mutator.
func (Mutator) Name() string { return Name }

// Mutate returns the information about the bind.
func (Mutator) Mutate(in mutators.Input) (mutators.Output, error) {
	annotations := make(map[string]string, 6)
	add := func(key, value string) {
		if value != "" {
			annotations[key] = value
		}
	}
	add("user", text.Clip(in.User.Username, maxValue))
	add("scheduler", text.Clip(in.Pod.Spec.SchedulerName, maxValue))
	add("time", in.Bind.At.UTC().Format(time.RFC3339))
	add("calls", strconv.Itoa(in.Bind.Calls))
	add("waited", seconds(in.Bind.Waited))
	add("attempt", in.Bind.Attempt)
	return mutators.Output{Annotations: annotations, Changing: changing}, nil
}

// seconds formats the duration as seconds with milliseconds. A negative duration becomes 0. A clock
// that is set back can cause one.
func seconds(d time.Duration) string {
	return fmt.Sprintf("%.3fs", max(d, 0).Truncate(time.Millisecond).Seconds())
}
