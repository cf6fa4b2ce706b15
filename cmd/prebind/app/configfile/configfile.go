// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package configfile reads a configuration file strictly: a field that there is
// not, one that is given twice, and a value of another type are errors that name
// the line, all of them at once.
package configfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Header begins every configuration file.
type Header struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
}

// File is a configuration file that was decoded.
type File struct {
	name string
	root *yaml.Node
}

// Decode decodes the content of the file into a pointer to a struct, whose fields
// have yaml tags; what the file does not give stays as it is. The struct has the
// fields of the Header, and those of the file must be these. The name is for the
// errors. An error may be several, joined by errors.Join, each one line.
func Decode(name string, content []byte, want Header, into any) (*File, error) {
	f := &File{name: name, root: &yaml.Node{}}
	if err := yaml.Unmarshal(content, f.root); err != nil {
		return nil, f.syntax(err)
	}
	if header := (Header{APIVersion: f.word("apiVersion"), Kind: f.word("kind")}); header != want {
		return nil, f.At("apiVersion", fmt.Errorf("it is a %q of %q, this program reads a %s of %s", header.Kind, header.APIVersion, want.Kind, want.APIVersion))
	}
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	decoder.KnownFields(true)
	if err := decoder.Decode(into); err != nil {
		return nil, f.problems(err, reflect.TypeOf(into))
	}
	if err := decoder.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: it has more than one document, one is read", name)
	}
	return f, nil
}

// At returns the error with the file's name and the line of the field, such as
// budgets.hold or namespaces[1].mode, or else of the closest field around it that
// the file has.
func (f *File) At(path string, err error) error {
	line, _ := f.find(path)
	if line == 0 {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	return fmt.Errorf("%s:%d: %w", f.name, line, err)
}

// Has says whether the file gives the field.
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
	if f.root == nil || len(f.root.Content) == 0 {
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

var (
	syntaxError  = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)
	lineError    = regexp.MustCompile(`^line (\d+): (.*)$`)
	unknownField = regexp.MustCompile(`(?s)^field (.+) not found in type (.*)$`)
	wrongType    = regexp.MustCompile("(?s)^cannot unmarshal !!([a-z]+)(?: `(.*)`)? into (.*)$")
	twice        = regexp.MustCompile(`^mapping key (".*") already defined at line (\d+)$`)
)

// syntax makes the error of a file that is no YAML.
func (f *File) syntax(err error) error {
	text := oneLine(err.Error())
	if m := syntaxError.FindStringSubmatch(text); m != nil && m[1] != "" {
		return fmt.Errorf("%s:%s: it is no YAML: %s", f.name, m[1], m[2])
	}
	return fmt.Errorf("%s: it is no YAML: %s", f.name, strings.TrimPrefix(text, "yaml: "))
}

// problems are what is wrong with the fields of a file.
func (f *File) problems(err error, into reflect.Type) error {
	var wrong *yaml.TypeError
	if !errors.As(err, &wrong) {
		return f.syntax(err)
	}
	known := fieldsOf(into)
	var all []error
	for _, text := range wrong.Errors {
		m := lineError.FindStringSubmatch(oneLine(text))
		if m == nil {
			all = append(all, fmt.Errorf("%s: %s", f.name, oneLine(text)))
			continue
		}
		all = append(all, fmt.Errorf("%s:%s: %s", f.name, m[1], plain(m[2], known)))
	}
	return errors.Join(all...)
}

// plain says in plain words what the library says.
func plain(text string, known map[string][]string) string {
	if m := unknownField.FindStringSubmatch(text); m != nil {
		return fmt.Sprintf("there is no field %q: the known ones are %s", m[1], strings.Join(known[m[2]], ", "))
	}
	if m := twice.FindStringSubmatch(text); m != nil {
		return fmt.Sprintf("the field %s is given twice, first in line %s", m[1], m[2])
	}
	if m := wrongType.FindStringSubmatch(text); m != nil {
		what := map[string]string{"map": "a map", "seq": "a list", "null": "nothing"}[m[1]]
		if what == "" {
			what = strconv.Quote(m[2])
		}
		return fmt.Sprintf("it is %s, and must be %s", what, wanted(m[3]))
	}
	return text
}

// wanted is what a Go type is called in a file.
func wanted(typeName string) string {
	switch {
	case typeName == "time.Duration":
		return "a duration such as 90s or 5m"
	case typeName == "int":
		return "a whole number"
	case typeName == "bool":
		return "true or false"
	case typeName == "[]string":
		return "a list of words"
	case strings.HasPrefix(typeName, "[]"):
		return "a list"
	case typeName == "string":
		return "a word"
	default:
		return "a map of fields"
	}
}

// fieldsOf returns the names of the fields of all structs that are reached from the
// type, by the struct's name.
func fieldsOf(t reflect.Type) map[string][]string {
	known := map[string][]string{}
	var visit func(t reflect.Type)
	visit = func(t reflect.Type) {
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct || known[t.String()] != nil {
			return
		}
		known[t.String()] = names(t)
		for field := range t.Fields() {
			visit(field.Type)
		}
	}
	visit(t)
	return known
}

// Fields returns the names of the fields of a struct, or of a pointer to one, in
// order, those of inlined structs included.
func Fields(of any) []string {
	t := reflect.TypeOf(of)
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return names(t)
}

// names are the fields of a struct, those of inlined structs included.
func names(t reflect.Type) []string {
	var all []string
	for field := range t.Fields() {
		name, rest, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		switch {
		case slices.Contains(strings.Split(rest, ","), "inline"):
			all = append(all, names(field.Type)...)
		case name != "" && name != "-":
			all = append(all, name)
		}
	}
	return all
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
