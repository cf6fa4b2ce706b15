// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"

	"github.com/prebind/prebind/binder/framework"
)

// Unreadable returns an error for Kind.Decode that names the key of the ConfigMap. advice
// describes the fix for an operator.
func Unreadable(key string, err error, advice string) error {
	return &unreadable{key: key, err: err, advice: advice}
}

type unreadable struct {
	key    string
	err    error
	advice string
}

// Error implements error.
func (u *unreadable) Error() string {
	const most = 300 // JSON errors can quote input of any length.
	return fmt.Sprintf("key %q cannot be decoded: %s", cut(u.key, 80), cut(u.err.Error(), most))
}

// Unwrap returns the cause.
func (u *unreadable) Unwrap() error { return u.err }

func (s *Store[K, R]) decode(object *corev1.ConfigMap) (*Version[R], error) {
	record, err := s.kind.Decode(object.Data)
	for key := range object.BinaryData {
		err = Unreadable(key, errors.New("it is in binaryData"), "move it to data, or delete it")
	}
	if err == nil && s.kind.Name(record.Key()) != object.Name {
		err = fmt.Errorf("it contains the record of %s, which must be in ConfigMap %s", short(record.Key()), s.kind.Name(record.Key()))
	}
	if err != nil {
		return nil, undecodable(object, err)
	}
	return &Version[R]{Record: record, object: object}, nil
}

// decodeAs decodes a ConfigMap, and requires that the record has the key.
func (s *Store[K, R]) decodeAs(key K, object *corev1.ConfigMap) (*Version[R], error) {
	v, err := s.decode(object)
	if err == nil && v.Record.Key() != key {
		return nil, undecodable(object, fmt.Errorf("it contains the record of %s, not of %s: both have the same ConfigMap name", short(v.Record.Key()), short(key)))
	}
	return v, err
}

// undecodable returns the error for an operator, who has to fix the ConfigMap.
func undecodable(object *corev1.ConfigMap, err error) error {
	about := framework.Object{Kind: "ConfigMap", Namespace: object.Namespace, Name: object.Name}
	e := framework.Internal(about, err)
	var u *unreadable
	if errors.As(err, &u) && u.advice != "" {
		return e.Advise("%s", u.advice)
	}
	return e.Advise("fix it, or delete it if none of its devices is in use")
}

func short(key any) string { return cut(fmt.Sprintf("%q", fmt.Sprint(key)), 80) }

func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// ObjectName is a namespace and a name. Its text form is "namespace/name".
type ObjectName types.NamespacedName

// String implements fmt.Stringer.
func (n ObjectName) String() string { return n.Namespace + "/" + n.Name }

// MarshalText implements encoding.TextMarshaler.
func (n ObjectName) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. It rejects invalid names.
func (n *ObjectName) UnmarshalText(text []byte) error {
	namespace, name, ok := strings.Cut(string(text), "/")
	if !ok || len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return fmt.Errorf("%s: must be namespace/name", short(string(text)))
	}
	*n = ObjectName{Namespace: namespace, Name: name}
	return nil
}

// Marshal returns the value as JSON on one line, without HTML escapes.
func Marshal(value any) (string, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	return strings.TrimSpace(text.String()), err
}

// Unmarshal decodes a JSON value strictly: it rejects text after the value, unknown fields
// and duplicate keys, which encoding/json would drop. Keys are case-sensitive.
func Unmarshal(text string, into any) error {
	strict, err := kjson.UnmarshalStrict([]byte(text), into)
	return errors.Join(append(strict, err)...)
}
