// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodecondition compares conditions of nodes with expected ones.
package nodecondition

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	nodeutil "k8s.io/component-helpers/node/util"

	"github.com/prebind/prebind/internal/text"
)

// maxText is the maximum length of a text of the API in a message, in bytes.
const maxText = 200

// Expectation is an expected status of a node condition. With Not, every other status is expected, and no status.
type Expectation struct {
	Type   corev1.NodeConditionType
	Not    bool
	Status corev1.ConditionStatus
}

// Parse parses a list such as "GPUReady,DiskPressure!=True", and returns it in the order of the types. The syntax
// is that of equality-based label selectors. A type without a status expects the status True. The error completes a sentence
// that begins with the name of the list.
func Parse(list string) ([]Expectation, error) {
	requirements, err := labels.ParseToRequirements(list)
	if err != nil {
		return nil, fmt.Errorf("must be a list of Type=Status: %s", text.Clip(err.Error(), maxText))
	}
	var all []Expectation
	for _, r := range requirements {
		c := Expectation{Type: corev1.NodeConditionType(r.Key()), Status: corev1.ConditionTrue}
		switch op := r.Operator(); op {
		case selection.Exists:
		case selection.Equals, selection.DoubleEquals, selection.NotEquals:
			c.Not, c.Status = op == selection.NotEquals, corev1.ConditionStatus(r.ValuesUnsorted()[0])
		default:
			c.Status = ""
		}
		if c.Status != corev1.ConditionTrue && c.Status != corev1.ConditionFalse && c.Status != corev1.ConditionUnknown {
			return nil, fmt.Errorf("must be a list of Type=Status: status must be True, False, or Unknown in %q", text.Clip(r.String(), maxText))
		}
		all = append(all, c)
	}
	return all, nil
}

// String returns text such as "GPUReady to be True".
func (c Expectation) String() string {
	to := "to be"
	if c.Not {
		to = "not to be"
	}
	return fmt.Sprintf("%s %s %s", text.Clip(string(c.Type), maxText), to, c.Status)
}

// Mismatch returns text such as "it is False (DriverCrashed)" if the node is not as expected, and otherwise "".
func (c Expectation) Mismatch(node *corev1.Node) string {
	_, found := nodeutil.GetNodeCondition(&node.Status, c.Type)
	switch {
	case (found != nil && found.Status == c.Status) != c.Not:
		return ""
	case found == nil:
		return "it is not set"
	case found.Reason == "":
		return "it is " + text.Clip(string(found.Status), maxText)
	default:
		return "it is " + text.Clip(string(found.Status), maxText) + " (" + text.Clip(found.Reason, maxText) + ")"
	}
}
