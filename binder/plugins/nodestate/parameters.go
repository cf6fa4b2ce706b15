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
	"unicode"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/prebind/prebind/binder/framework"
)

// The keys of the annotations, behind node-state.<domain>/.
const (
	keyExpect     = "expect"
	keyConditions = "expect-conditions"
	keyWait       = "wait"
)

const (
	// maxValue is how long an annotation may be, in bytes. It is looked at before
	// anything else, so that no value costs much.
	maxValue = 4096
	// maxEcho is how much of what others wrote a message shows, in bytes.
	maxEcho = 200
	// maxKeyEcho is more than a valid annotation key has.
	maxKeyEcho = 320
	// maxShown is how many things of a kind a message lists.
	maxShown = 5
)

// expectations are what the Binding and the pod say by annotations.
type expectations struct {
	labels     labels.Requirements
	conditions []condition
	// wait is how long to wait for all of it; 0 is not at all.
	wait time.Duration
}

// condition is one that the node is expected to have, or, with not, one that it
// is expected not to have.
type condition struct {
	kind   corev1.NodeConditionType
	not    bool
	status corev1.ConditionStatus
}

// parse reads the parameters. Every error is an framework.KindInvalid that names the
// annotations; a key that is not known is one of them, for it may be a typing
// error.
func parse(parameters map[string]framework.Parameter, maxWait time.Duration) (expectations, error) {
	var e expectations
	if len(parameters) == 0 {
		return e, nil
	}
	var wrong []problem
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		if err := e.set(key, parameters[key].Value); err != nil {
			wrong = append(wrong, problem{parameters[key], err})
		}
	}
	if len(wrong) > 0 {
		return expectations{}, invalid(wrong)
	}
	e.wait = min(e.wait, maxWait)
	return e, nil
}

// set takes one parameter in. Its error says what the value should be.
func (e *expectations) set(key, value string) (err error) {
	switch {
	case len(value) > maxValue:
		return fmt.Errorf("is longer than %d bytes", maxValue)
	case strings.ContainsRune(value, 0):
		// The parser of selectors takes it for the end, and would leave out the rest.
		return errors.New("has a NUL character in it")
	}
	switch key {
	case keyExpect:
		e.labels, err = labels.ParseToRequirements(value, field.WithPath(field.NewPath(keyExpect)))
		if err != nil {
			return fmt.Errorf("must be a label selector: %s", clip(err.Error(), maxEcho))
		}
	case keyConditions:
		e.conditions, err = parseConditions(value)
	case keyWait:
		e.wait, err = time.ParseDuration(value)
		if err != nil || e.wait <= 0 {
			return fmt.Errorf("must be a positive time such as 30s, it is %q", clip(value, maxEcho))
		}
	default:
		return fmt.Errorf("is not known; the keys are %s, %s and %s", keyExpect, keyConditions, keyWait)
	}
	return err
}

// parseConditions reads a list such as "GPUReady,DiskPressure!=True". It looks
// like the equality-based part of a label selector; a type alone is the type with
// the status True.
func parseConditions(value string) ([]condition, error) {
	if strings.TrimSpace(value) == "" {
		return nil, nil
	}
	var all []condition
	for item := range strings.SplitSeq(value, ",") {
		c, err := parseCondition(item)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

func parseCondition(item string) (condition, error) {
	c := condition{status: corev1.ConditionTrue}
	kind, status, given := strings.Cut(item, "=")
	if given {
		if kind, c.not = strings.CutSuffix(kind, "!"); !c.not {
			// To label selectors, == is =.
			status = strings.TrimPrefix(status, "=")
		}
		c.status = corev1.ConditionStatus(strings.TrimSpace(status))
	}
	c.kind = corev1.NodeConditionType(strings.TrimSpace(kind))
	if wrong := content.IsLabelKey(string(c.kind)); len(wrong) > 0 {
		return c, fmt.Errorf("must be a list of Type=Status, %q has no valid type", clip(item, maxEcho))
	}
	switch c.status {
	case corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown:
		return c, nil
	default:
		return c, fmt.Errorf("must be a list of Type=Status with the status True, False or Unknown, %q has another", clip(item, maxEcho))
	}
}

// problem is a parameter and what is wrong with it.
type problem struct {
	framework.Parameter
	err error
}

// invalid makes one error of them.
func invalid(wrong []problem) *framework.Error {
	var messages []string
	var fields []framework.Field
	for _, w := range wrong[:min(len(wrong), maxShown)] {
		w.Annotation = clip(w.Annotation, maxKeyEcho)
		messages = append(messages, "the annotation "+w.Annotation+" "+w.err.Error())
		fields = append(fields, w.Field(w.err.Error()))
	}
	if more := len(wrong) - len(messages); more > 0 {
		messages = append(messages, fmt.Sprintf("and %d more", more))
	}
	return framework.Invalid(wrong[0].On, strings.Join(messages, "; "), fields...).Advise("correct it")
}

// clip makes text that others wrote fit for a message of one line: it has at most
// so many bytes, and another one stands for what cannot be printed.
func clip(text string, most int) string {
	shown := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text[:min(len(text), most)])
	if len(text) <= most && len(shown) <= most {
		return shown
	}
	// What is no UTF-8 has become longer, and the last character may be half of one.
	return strings.TrimRight(strings.ToValidUTF8(shown[:min(len(shown), most)], ""), "\ufffd") + "…"
}
