// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/text"
)

// Unreadable returns an error for Kind.Decode that names the key of the ConfigMap. advice
// describes the fix for an operator.
func Unreadable(key string, err error, advice string) error {
	const most = 300 // JSON errors can quote input of any length.
	cause := fmt.Errorf("key %q cannot be decoded: %s", text.Clip(key, maxShown), text.Clip(err.Error(), most))
	return framework.Internal(framework.Object{}, cause).Advise("%s", advice)
}

// maxShown is the maximum length of keys and names in messages, in bytes.
const maxShown = 80

// quote returns a key for a message.
func quote(key any) string { return fmt.Sprintf("%q", text.Clip(fmt.Sprint(key), maxShown)) }

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
		return fmt.Errorf("%s: must be namespace/name", quote(string(text)))
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
