// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package jsonpatch applies patches as the API server does.
package jsonpatch

import (
	"encoding/json"
	"fmt"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
)

// Apply returns the JSON document with a JSON patch or a merge patch applied, by the
// library that the API server applies them with. The document may be invalid as an object.
func Apply(doc []byte, kind types.PatchType, content []byte) ([]byte, error) {
	d := &document{raw: doc}
	if err := apply(d, kind, content); err != nil {
		return nil, err
	}
	return d.raw, nil
}

// To returns a copy of the object with a JSON patch, a merge patch or a strategic merge
// patch applied. It compares no versions.
func To[T runtime.Object](o T, kind types.PatchType, content []byte) (T, error) {
	patched, ok := reflect.TypeAssert[T](reflect.ValueOf(o.DeepCopyObject()))
	if !ok {
		return o, fmt.Errorf("the copy of a %T has another type", o)
	}
	return patched, apply(patched, kind, content)
}

// apply changes the object. client-go's fake applies patches for its own tracker; a
// tracker of this one object needs nothing else.
func apply(o runtime.Object, kind types.PatchType, content []byte) error {
	action := clienttesting.NewPatchAction(schema.GroupVersionResource{}, "", "", kind, content)
	_, _, err := clienttesting.ObjectReaction(single{object: o})(action)
	return err
}

// single is a tracker that has one object.
type single struct {
	clienttesting.ObjectTracker
	object runtime.Object
}

// Get implements ObjectTracker.
func (s single) Get(schema.GroupVersionResource, string, string, ...metav1.GetOptions) (runtime.Object, error) {
	return s.object, nil
}

// Patch implements ObjectTracker. The object has been changed already.
func (s single) Patch(schema.GroupVersionResource, runtime.Object, string, ...metav1.PatchOptions) error {
	return nil
}

// document is any JSON.
type document struct{ raw json.RawMessage }

// GetObjectKind implements runtime.Object.
func (*document) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object.
func (d *document) DeepCopyObject() runtime.Object {
	return &document{raw: append(json.RawMessage{}, d.raw...)}
}

// MarshalJSON implements json.Marshaler.
func (d *document) MarshalJSON() ([]byte, error) { return d.raw, nil }

// UnmarshalJSON implements json.Unmarshaler.
func (d *document) UnmarshalJSON(content []byte) error {
	d.raw = append(json.RawMessage{}, content...)
	return nil
}
