// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/prebind/prebind/binder/framework"
)

// decode reads a record. Something in it that cannot be read is an error: a grant
// that is lost is a device given twice.
func decode(object *corev1.ConfigMap) (*record, error) {
	rec := &record{Node: object.Data[nodeField], Entries: map[types.UID]*entry{}, object: object}
	if recordName(rec.Node) != object.Name {
		return nil, unreadable(object, nodeField, fmt.Errorf("%q is not the node that the ConfigMap is named after", short(rec.Node)))
	}
	for key := range object.BinaryData {
		return nil, unreadable(object, key, errors.New("it is in binaryData"))
	}
	for _, key := range slices.Sorted(maps.Keys(object.Data)) {
		if err := rec.decodeKey(key, object.Data[key]); err != nil {
			return nil, unreadable(object, key, err)
		}
	}
	return rec, nil
}

// decodeOf is decode for the record of this node.
func decodeOf(node string, object *corev1.ConfigMap) (*record, error) {
	rec, err := decode(object)
	if err == nil && rec.Node != node {
		return nil, unreadable(object, nodeField, fmt.Errorf("it is %q, whose record has the same name as that of %q", rec.Node, node))
	}
	return rec, err
}

func (r *record) decodeKey(key, text string) error {
	switch key {
	case nodeField:
		return nil
	case lockField:
		r.Lock = &lock{}
		if err := decodeStrictly(text, r.Lock); err != nil {
			return err
		}
		return r.Lock.check()
	default:
		e := &entry{}
		r.Entries[types.UID(key)] = e
		if err := decodeStrictly(text, e); err != nil {
			return err
		}
		return e.check()
	}
}

func (l *lock) check() error {
	if l.Pod == (podName{}) || l.UID == "" || len(l.Attempts) == 0 || slices.Contains(l.Attempts, "") || l.Expires.IsZero() {
		return errors.New("pod, uid, attempts or expires is missing")
	}
	return nil
}

func (e *entry) check() error {
	if e.Pod == (podName{}) || len(e.Grants) == 0 {
		return errors.New("pod or grants is missing")
	}
	for _, g := range e.Grants {
		if len(g.Devices) == 0 || g.Attempt == "" && !e.Bound {
			return errors.New("attempt or devices is missing in a grant")
		}
		for key, ids := range g.Devices {
			if len(ids) == 0 || key == "" {
				return fmt.Errorf("the resource %q has no devices or no name", short(key))
			}
			for id, s := range ids {
				if id == "" || s <= 0 {
					return fmt.Errorf("the device %q has no share or no name", short(id))
				}
			}
		}
	}
	return nil
}

// decodeStrictly reads one JSON value, with nothing behind it, nothing unknown in it
// and nothing twice, of which but one would count.
func decodeStrictly(text string, into any) error {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	if rest := strings.TrimSpace(text[decoder.InputOffset():]); rest != "" {
		return fmt.Errorf("%q is behind its end", short(rest))
	}
	return noneTwice(json.NewDecoder(strings.NewReader(text)), 0)
}

// namedByCode is down to which depth the keys of objects are those of structs, for
// which capitals count as small letters.
const namedByCode = 2

// noneTwice reads the next value and finds keys that it has twice.
func noneTwice(decoder *json.Decoder, depth int) error {
	token, err := decoder.Token()
	if err != nil {
		return err
	}
	delimiter, nested := token.(json.Delim)
	if !nested {
		return nil
	}
	if delimiter == '{' {
		depth++
	}
	seen := sets.New[string]()
	for decoder.More() {
		if delimiter == '{' {
			token, err := decoder.Token()
			if err != nil {
				return err
			}
			key := fmt.Sprint(token)
			if depth <= namedByCode {
				key = strings.ToLower(key)
			}
			if seen.Has(key) {
				return fmt.Errorf("%q is there twice", short(key))
			}
			seen.Insert(key)
		}
		if err := noneTwice(decoder, depth); err != nil {
			return err
		}
	}
	_, err = decoder.Token()
	return err
}

func unreadable(object *corev1.ConfigMap, key string, err error) *framework.Error {
	const most = 300 // The decoder shows what it does not understand in full.
	about := framework.Object{Kind: "ConfigMap", Namespace: object.Namespace, Name: object.Name}
	return framework.Internal(about, fmt.Errorf("its key %q, without which it is not known who holds what, cannot be read: %s", short(key), cut(err.Error(), most))).
		Advise("correct it, or delete the key when you know that the pod holds no devices of the node")
}

// encode is what the ConfigMap is to hold.
func (r *record) encode() (map[string]string, error) {
	data := map[string]string{nodeField: r.Node}
	put := func(key string, value any) error {
		var text bytes.Buffer
		encoder := json.NewEncoder(&text)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(value); err != nil {
			return err
		}
		data[key] = strings.TrimSpace(text.String())
		return nil
	}
	for uid, e := range r.Entries {
		if err := put(string(uid), e); err != nil {
			return nil, err
		}
	}
	if r.Lock != nil {
		if err := put(lockField, r.Lock); err != nil {
			return nil, err
		}
	}
	return data, nil
}
