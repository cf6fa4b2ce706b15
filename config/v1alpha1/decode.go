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

// Read reads the content of a file over the configuration: a field that the file does
// not have keeps its value. Unknown fields, duplicate fields and values of the wrong type
// are errors. The error joins all of them; each is one line with the name of the file and
// the number of the line.
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

// At returns the error with the file's name and the line of the field, such as
// budgets.hold or namespaces[1].mode, or of the closest field around it that the file
// has.
func (f *File) At(path string, err error) error {
	line, _ := f.find(path)
	return f.on(line, err)
}

// on returns the error with the file's name and the line, unless it is 0.
func (f *File) on(line int, err error) error {
	if line == 0 {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	return fmt.Errorf("%s:%d: %w", f.name, line, err)
}

// Has returns whether the file has the field.
func (f *File) Has(path string) bool {
	_, found := f.find(path)
	return found
}

// word is the value of a field on top.
func (f *File) word(field string) string {
	if len(f.root.Content) > 0 {
		if _, value := child(f.root.Content[0], field); value != nil {
			return value.Value
		}
	}
	return ""
}

// find returns the line of the field, or of the closest one around it.
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

// child returns the field or the element of a node, and what names it.
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

// reader reads nodes into values, strictly. It reads structs and lists itself, in order to
// know the line of each problem, and leaves other values to the library.
type reader struct {
	file     *File
	problems []error
}

func (r *reader) fail(at *yaml.Node, format string, args ...any) {
	r.problems = append(r.problems, r.file.on(at.Line, fmt.Errorf(format, args...)))
}

// read reads the node into the value; null leaves it as it is. The depth is that of the
// type, whatever aliases the file has.
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

// mergedPairs returns the keys and values of a map. If it has a merge key (<<), the
// library merges.
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

// describe returns what a node is, for an error.
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

// wanted returns what a type is in the file, for an error.
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

// fieldsOf returns the fields of a struct in their order, those of inlined structs
// included, or the arguments of an ArgumentsList. It returns false for other types, and
// for structs that read themselves.
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

// Fields returns the names of the fields of arguments, in their order.
func Fields(a Arguments) []string {
	fields, _ := fieldsOf(reflect.ValueOf(a).Elem())
	return namesOf(fields)
}
