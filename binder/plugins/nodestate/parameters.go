// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/nodecondition"
	"github.com/prebind/prebind/internal/text"
)

// The keys of the annotations, after node-state.prebind.dev/.
const (
	keyExpect     = "expect"
	keyConditions = "expect-conditions"
	keyWait       = "wait"
)

const (
	// maxValue is the maximum length of an annotation, in bytes. It is checked first, to
	// bound the cost of parsing.
	maxValue = 4096
	// maxEcho is the maximum length of a quoted value in a message, in bytes.
	maxEcho = 200
	// maxShown is the maximum number of findings in a message.
	maxShown = 5
)

// expectations are the parsed annotations of the Binding and the pod.
type expectations struct {
	labels     labels.Requirements
	conditions []nodecondition.Expectation
	// wait is how long to wait for the expectations and checks. 0 means no wait.
	wait time.Duration
}

// parse parses the parameters. Every error is a framework.KindInvalid that names the
// annotations. An unknown key is an error, because it can be a typing error.
func parse(parameters map[string]framework.Parameter, maxWait time.Duration) (expectations, error) {
	var e expectations
	if len(parameters) == 0 {
		return e, nil
	}
	var wrong []*framework.Error
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		if err := e.set(key, parameters[key].Value); err != nil {
			wrong = append(wrong, parameters[key].Invalid("%s", err))
		}
	}
	if len(wrong) > 0 {
		return expectations{}, framework.InvalidParameters(wrong)
	}
	e.wait = min(e.wait, maxWait)
	return e, nil
}

// set parses one parameter. Its error completes a sentence that begins with the annotation.
func (e *expectations) set(key, value string) (err error) {
	switch {
	case len(value) > maxValue:
		return fmt.Errorf("is longer than %d bytes", maxValue)
	case strings.ContainsRune(value, 0):
		// The parser of selectors ignores everything after it.
		return errors.New("contains a NUL character")
	}
	switch key {
	case keyExpect:
		e.labels, err = labels.ParseToRequirements(value, field.WithPath(field.NewPath(keyExpect)))
		if err != nil {
			return fmt.Errorf("must be a label selector: %s", clip(err.Error()))
		}
	case keyConditions:
		e.conditions, err = nodecondition.Parse(value)
	case keyWait:
		if value == "" { // A Binding can cancel the wait that the pod requests.
			return nil
		}
		e.wait, err = time.ParseDuration(value)
		if err != nil || e.wait <= 0 {
			return fmt.Errorf("must be a positive duration such as 30s, or empty, got %q", clip(value))
		}
	default:
		return fmt.Errorf("is unknown; known keys are %s, %s, and %s", keyExpect, keyConditions, keyWait)
	}
	return err
}

// clip makes a user's text safe for messages.
func clip(s string) string { return text.Clip(s, maxEcho) }
