// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"bytes"
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// File is a parsed configuration file.
type File struct {
	name string
	root *yaml.Node
}

// Read sets the fields of the configuration from the content of a file. Fields that are not in
// the file keep their values. Unknown fields, duplicate fields and values of the wrong type are
// errors. The error joins all of them. Each is one line with the name of the file and the line
// number.
func (c *PrebindConfiguration) Read(name string, content []byte) (*File, error) {
	f := &File{name: name, root: &yaml.Node{}}
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	if err := decoder.Decode(f.root); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: invalid YAML: %s", name, oneLine(err))
	}
	if version, kind := f.word("apiVersion"), f.word("kind"); version != APIVersion || kind != Kind {
		return nil, f.At("apiVersion", fmt.Errorf("must be kind %s of apiVersion %s, got kind %q of apiVersion %q", Kind, APIVersion, kind, version))
	}
	d := &reader{file: f}
	d.read(f.root.Content[0], reflect.ValueOf(c).Elem())
	if len(d.problems) > 0 {
		return nil, errors.Join(d.problems...)
	}
	if err := decoder.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: must have one document, has more", name)
	}
	return f, nil
}

// At adds the name of the file and the line of a field, such as budgets.hold or
// namespaces[1].mode, to an error. If the file lacks the field, At uses the closest parent that the
// file contains.
func (f *File) At(path string, err error) error {
	line, _ := f.find(path)
	return f.on(line, err)
}

// on adds the name of the file and the line to an error. It omits line 0.
func (f *File) on(line int, err error) error {
	if line == 0 {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	return fmt.Errorf("%s:%d: %w", f.name, line, err)
}

// Has reports whether the file contains the field.
func (f *File) Has(path string) bool {
	_, found := f.find(path)
	return found
}

// word returns the value of a top-level field.
func (f *File) word(field string) string {
	if len(f.root.Content) > 0 {
		if _, value := child(f.root.Content[0], field); value != nil {
			return value.Value
		}
	}
	return ""
}

// find returns the line of the field, or of its closest parent.
func (f *File) find(path string) (line int, found bool) {
	if len(f.root.Content) == 0 {
		return 0, false
	}
	at := f.root.Content[0]
	for step := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '.' || r == '[' || r == ']' }) {
		key, value := child(at, step)
		if value == nil {
			return line, false
		}
		line, at = key.Line, value
	}
	return line, true
}

// child returns the field or element of a node, and its key.
func child(at *yaml.Node, step string) (key, value *yaml.Node) {
	switch at.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(at.Content); i += 2 {
			if at.Content[i].Value == step {
				return at.Content[i], at.Content[i+1]
			}
		}
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(at.Content) {
			return at.Content[i], at.Content[i]
		}
	case yaml.AliasNode:
		return child(at.Alias, step)
	default:
	}
	return nil, nil
}

// reader strictly decodes nodes into values. It decodes structs and lists itself to get the line of
// each problem. The library decodes other values.
type reader struct {
	file     *File
	problems []error
}

func (r *reader) fail(at *yaml.Node, format string, args ...any) {
	r.problems = append(r.problems, r.file.on(at.Line, fmt.Errorf(format, args...)))
}

// read decodes the node into the value. A null node keeps the value. The type limits the depth of
// the recursion, so aliases cannot cause an endless one.
func (r *reader) read(at *yaml.Node, into reflect.Value) {
	for at.Kind == yaml.AliasNode {
		at = at.Alias
	}
	if at.Kind == yaml.ScalarNode && at.Tag == "!!null" {
		return
	}
	for into.Kind() == reflect.Pointer {
		if into.IsNil() {
			into.Set(reflect.New(into.Type().Elem()))
		}
		into = into.Elem()
	}
	fields, isMap := fieldsOf(into)
	isList := !isMap && into.Kind() == reflect.Slice
	switch {
	case isMap && at.Kind == yaml.MappingNode:
		r.readFields(at, fields)
	case isList && at.Kind == yaml.SequenceNode:
		list := reflect.MakeSlice(into.Type(), len(at.Content), len(at.Content))
		for i, element := range at.Content {
			r.read(element, list.Index(i))
		}
		into.Set(list)
	case isMap, isList, at.Decode(into.Addr().Interface()) != nil:
		r.fail(at, "must be %s, got %s", wanted(into.Type(), isMap), describe(at))
	}
}

func (r *reader) readFields(at *yaml.Node, fields []field) {
	pairs, err := mergedPairs(at)
	if err != nil {
		r.fail(at, "%s", oneLine(err))
		return
	}
	lines := map[string]int{}
	for i := 0; i+1 < len(pairs); i += 2 {
		key, value := pairs[i], pairs[i+1]
		known := slices.IndexFunc(fields, func(f field) bool { return f.name == key.Value })
		switch first := lines[key.Value]; {
		case known < 0:
			r.fail(key, "unknown field %q: must be one of %s", key.Value, strings.Join(namesOf(fields), ", "))
		case first > 0:
			r.fail(key, "duplicate field %q, first in line %d", key.Value, first)
		default:
			lines[key.Value] = key.Line
			r.read(value, fields[known].value)
		}
	}
}

// mergedPairs returns the keys and values of a map. The library merges a map with a merge key (<<).
func mergedPairs(at *yaml.Node) ([]*yaml.Node, error) {
	if !slices.ContainsFunc(at.Content, func(n *yaml.Node) bool { return n.Tag == "!!merge" }) {
		return at.Content, nil
	}
	var merged map[string]yaml.Node
	if err := at.Decode(&merged); err != nil {
		return nil, err
	}
	var pairs []*yaml.Node
	for _, name := range slices.Sorted(maps.Keys(merged)) {
		value := merged[name]
		pairs = append(pairs, &yaml.Node{Kind: yaml.ScalarNode, Value: name, Line: value.Line}, &value)
	}
	return pairs, nil
}

func oneLine(err error) string {
	return strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "yaml: ")), " ")
}

// describe returns a description of a node for an error.
func describe(at *yaml.Node) string {
	switch at.Kind {
	case yaml.MappingNode:
		return "a map"
	case yaml.SequenceNode:
		return "a list"
	default:
		return strconv.Quote(at.Value)
	}
}

// wanted returns a description of a type for an error.
func wanted(t reflect.Type, isMap bool) string {
	switch {
	case isMap:
		return "a map of fields"
	case t == reflect.TypeFor[time.Duration]():
		return "a duration such as 90s or 5m"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.String:
		return "a string"
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.String:
		return "a list of strings"
	case t.Kind() == reflect.Slice:
		return "a list"
	case reflect.Int <= t.Kind() && t.Kind() <= reflect.Uint64:
		return "a whole number"
	default:
		return "a " + t.String()
	}
}

// field is a field of a map in the file.
type field struct {
	name  string
	value reflect.Value
}

// fieldsOf returns the fields of a struct in order, including those of inlined structs, or the
// arguments of an ArgumentsList. It returns false for other types, and for structs that decode
// themselves.
func fieldsOf(v reflect.Value) ([]field, bool) {
	if v.Type() == reflect.TypeFor[ArgumentsList]() {
		list, _ := reflect.TypeAssert[ArgumentsList](v)
		all := make([]field, 0, len(list))
		for _, a := range list {
			all = append(all, field{name: a.Name, value: reflect.ValueOf(a.Arguments).Elem()})
		}
		return all, true
	}
	if v.Kind() != reflect.Struct || readsItself(v) {
		return nil, false
	}
	var all []field
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case !f.IsExported() && !f.Anonymous, name == "-":
		case slices.Contains(strings.Split(options, ","), "inline"):
			inlined, _ := fieldsOf(v.Field(i))
			all = append(all, inlined...)
		default:
			all = append(all, field{name: cmp.Or(name, strings.ToLower(f.Name)), value: v.Field(i)})
		}
	}
	return all, true
}

func readsItself(v reflect.Value) bool {
	pointer := reflect.PointerTo(v.Type())
	return pointer.Implements(reflect.TypeFor[yaml.Unmarshaler]()) || pointer.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

func namesOf(fields []field) []string {
	names := make([]string, 0, len(fields))
	for _, f := range fields {
		names = append(names, f.name)
	}
	return names
}

// Fields returns the names of the fields of arguments in order.
func Fields(a Arguments) []string {
	fields, _ := fieldsOf(reflect.ValueOf(a).Elem())
	return namesOf(fields)
}
