// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"time"
)

// Options of a run. All durations must be positive.
type Options struct {
	// Scheduler is the value of spec.schedulerName.
	Scheduler string
	// NamespacePrefix begins the names of the namespaces.
	NamespacePrefix string
	// Run selects checks by name. Nil selects all. It must match the name of a check.
	Run *regexp.Regexp
	// Wait is the time for which Prebind makes the pod of the check wait wait.
	Wait time.Duration
	// Timeout is the time in which the scheduler must bind a pod that does not have to wait, or react to an answer.
	Timeout time.Duration
	// Burst is the number of pods of the check burst.
	Burst int
	// Nodes are the nodes to which the checks pin pods, at least two. If empty, two usable nodes are chosen.
	Nodes []string
	// BindingAnnotation is the key of an annotation that the scheduler sets on every Binding. Optional.
	BindingAnnotation string
	// NoFailureEvents requires that the scheduler reports no warning about a pod that waits.
	NoFailureEvents bool
	// PodLabels are labels of the pods, such as the queue of the scheduler.
	PodLabels map[string]string
	// Image is the image of the pods.
	Image string
	// Progress receives one line per step.
	Progress io.Writer
}

// Validate returns an error that names the first wrong flag.
func (o Options) Validate() error {
	switch {
	case o.Scheduler == "":
		return errors.New("--scheduler-name: required; it is the spec.schedulerName of the pods that your scheduler binds")
	case o.Wait <= 0 || o.Wait > maxWait:
		return fmt.Errorf("--wait: must be positive and at most %s, got %s", maxWait, o.Wait)
	case o.Timeout <= 0:
		return fmt.Errorf("--timeout: must be positive, got %s", o.Timeout)
	case o.Burst < 1 || o.Burst > maxBurst:
		return fmt.Errorf("--burst: must be from 1 to %d, got %d", maxBurst, o.Burst)
	case o.Run != nil && !slices.ContainsFunc(checks(), func(c check) bool { return o.Run.MatchString(c.name) }):
		return fmt.Errorf("--run: no check matches %q; --help lists the checks", o.Run)
	}
	return nil
}

const (
	// maxWait keeps the check wait below the default of node-state's maxWait, which is 5 minutes.
	maxWait  = 4 * time.Minute
	maxBurst = 1000
)
