// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
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

// Default returns the options of a run with the default settings.
func Default() Options {
	return Options{
		NamespacePrefix: "prebind-conformance-",
		Wait:            35 * time.Second, Timeout: 2 * time.Minute, Burst: 50,
		Image: "registry.k8s.io/pause:3.10", Progress: io.Discard,
	}
}

// Validate returns an error that names the first wrong flag.
func (o Options) Validate() error {
	if o.Scheduler == "" {
		return errors.New("--scheduler-name: required; it is the spec.schedulerName of the pods that your scheduler binds")
	}
	for name, d := range map[string]time.Duration{"--wait": o.Wait, "--timeout": o.Timeout} {
		if d <= 0 {
			return fmt.Errorf("%s: must be positive, got %s", name, d)
		}
	}
	if o.Wait > maxWait {
		return fmt.Errorf("--wait: must be at most %s, got %s", maxWait, o.Wait)
	}
	if o.Burst < 1 || o.Burst > maxBurst {
		return fmt.Errorf("--burst: must be from 1 to %d, got %d", maxBurst, o.Burst)
	}
	if _, err := choose(o.Run); err != nil {
		return err
	}
	if distinct := sets.New(o.Nodes...); len(o.Nodes) > 0 && len(distinct) < 2 {
		return fmt.Errorf("--nodes: must name at least two nodes, got %s", strings.Join(o.Nodes, ","))
	}
	if problems := validation.IsQualifiedName(o.BindingAnnotation); o.BindingAnnotation != "" && len(problems) > 0 {
		return fmt.Errorf("--binding-annotation: %s", problems[0])
	}
	return nil
}

const (
	// maxWait keeps the check wait below the default of node-state's maxWait, which is 5 minutes.
	maxWait  = 4 * time.Minute
	maxBurst = 1000
)
