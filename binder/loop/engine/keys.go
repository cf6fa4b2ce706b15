// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"maps"
	"sync"
	"sync/atomic"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// fitTogether returns whether the annotations fit on one object. Of a key that several maps have, the last value counts.
func fitTogether(sources ...map[string]string) bool {
	most := 0
	for _, source := range sources {
		for key, value := range source {
			most += len(key) + len(value)
		}
	}
	if most <= apivalidation.TotalAnnotationSizeLimitB {
		return true
	}
	merged := map[string]string{}
	for _, source := range sources {
		maps.Copy(merged, source)
	}
	return apivalidation.ValidateAnnotationsSize(merged) == nil
}

// validKeys are the annotation keys of earlier Bindings. Checking a key takes longer than the rest of a guard, and
// most Bindings have the same keys.
var validKeys keySet

// maxKeys bounds a keySet. A valid key has at most 317 bytes.
const maxKeys = 1024

// keySet remembers up to maxKeys valid annotation keys. It is safe for concurrent use.
type keySet struct {
	keys sync.Map
	size atomic.Int64
}

// check returns an error for each key that is not valid.
func (s *keySet) check(sources ...map[string]string) field.ErrorList {
	var problems field.ErrorList
	for _, source := range sources {
		for key := range source {
			if _, known := s.keys.Load(key); known {
				continue
			}
			found := apivalidation.ValidateAnnotations(map[string]string{key: ""}, annotationsPath)
			if problems = append(problems, found...); len(found) == 0 && s.size.Add(1) <= maxKeys {
				s.keys.Store(key, nil)
			}
		}
	}
	return problems
}
