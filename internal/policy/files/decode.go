// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	kjson "sigs.k8s.io/json"

	"github.com/prebind/prebind/internal/policy"
)

// unknownField is the message about a field that the type does not have.
const unknownField = "unknown field"

// DecodeStrict decodes an object. The problems are unknown fields and, last, the first value of another type. The path of such a value has no
// indexes, and is empty if its type decodes itself.
func DecodeStrict(object map[string]any, into any) []policy.Problem {
	content, err := json.Marshal(object)
	if err != nil {
		return []policy.Problem{{Reason: ReasonInvalid, Message: err.Error()}}
	}
	unknown, err := kjson.UnmarshalStrict(content, into)
	var all []policy.Problem
	for _, u := range unknown {
		path := strings.TrimPrefix(u.Error(), unknownField+" ")
		all = append(all, policy.Problem{Reason: ReasonInvalid, Field: strings.Trim(path, `"`), Message: unknownField})
	}
	if err != nil {
		problem := policy.Problem{Reason: ReasonInvalid, Message: err.Error()}
		if typed, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			problem.Field, problem.Message = typed.Field, fmt.Sprintf("must be of type %s, got %s", typed.Type, typed.Value)
		}
		all = append(all, problem)
	}
	return all
}
