// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package jsonpatch applies patches as the API server does, with the same libraries.
package jsonpatch

import (
	"encoding/json"
	"fmt"
	"reflect"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// Apply returns the JSON document with a JSON patch or a merge patch applied. The document may be invalid as an object.
func Apply(doc []byte, kind types.PatchType, content []byte) ([]byte, error) {
	switch kind {
	case types.JSONPatchType:
		patch, err := jsonpatch.DecodePatch(content)
		if err != nil {
			return nil, err
		}
		return patch.Apply(doc)
	case types.MergePatchType:
		return jsonpatch.MergePatch(doc, content)
	default:
		return nil, fmt.Errorf("patches of the type %s need an object", kind)
	}
}

// To returns a copy of the object with a JSON patch, a merge patch or a strategic merge
// patch applied. It compares no versions.
func To[T runtime.Object](o T, kind types.PatchType, content []byte) (T, error) {
	patched, ok := reflect.TypeAssert[T](reflect.New(reflect.TypeOf(o).Elem()))
	if !ok {
		return o, fmt.Errorf("the copy of a %T has another type", o)
	}
	doc, err := json.Marshal(o)
	if err != nil {
		return o, err
	}
	if kind == types.StrategicMergePatchType {
		doc, err = strategicpatch.StrategicMergePatch(doc, content, o)
	} else {
		doc, err = Apply(doc, kind, content)
	}
	if err != nil {
		return o, err
	}
	return patched, json.Unmarshal(doc, patched)
}
