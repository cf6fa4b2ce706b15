// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package files reads BindPolicies and other Kubernetes objects from files, and checks BindPolicies like the
// API server and Prebind do. It needs no cluster.
package files

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kjson "sigs.k8s.io/json"
	sigsyaml "sigs.k8s.io/yaml"
)

// Document is one object of a file.
type Document struct {
	// File is the name of the file, or "-" for the standard input.
	File string
	unstructured.Unstructured

	// before is the number of lines of the file before the document.
	before int
	node   *yaml.Node
}

// At returns the file and the line of a field, such as "policy.yaml:12". Without such a field, it is the
// line of the closest parent. The path has the form spec.validations[0].expression.
func (d *Document) At(path string) string {
	node, line := d.node, d.node.Line
	for _, step := range steps(path) {
		key, value := child(node, step)
		if value == nil {
			break
		}
		line, node = key.Line, value
	}
	return d.File + ":" + strconv.Itoa(d.before+line)
}

// quoteExpression is the advice for an expression that YAML reads as something else than a text.
const quoteExpression = "quote the expression, because YAML reads it as something else than a text"

// steps splits the path of a field. A dot in brackets is part of an index.
func steps(path string) []string {
	inIndex := false
	return strings.FieldsFunc(path, func(r rune) bool {
		switch r {
		case '[':
			inIndex = true
		case ']':
			inIndex = false
		}
		return r == '[' || r == ']' || r == '.' && !inIndex
	})
}

// child returns the key and the value of a field or list item. The value is nil if there is none.
func child(of *yaml.Node, step string) (key, value *yaml.Node) {
	if of != nil && of.Kind == yaml.AliasNode {
		of = of.Alias
	}
	switch {
	case of == nil:
	case of.Kind == yaml.MappingNode:
		for i := 0; i+1 < len(of.Content); i += 2 {
			if of.Content[i].Value == step {
				return of.Content[i], of.Content[i+1]
			}
		}
	case of.Kind == yaml.SequenceNode:
		if i, err := strconv.ParseUint(step, 10, 0); err == nil && i < uint64(len(of.Content)) {
			return of.Content[i], of.Content[i]
		}
	}
	return nil, nil
}

// Read reads the objects of files and directories, and of in for the path "-". In a directory and below, it
// reads the files that end in .yaml, .yml or .json, except tests and hidden directories, in the order of their
// names. The items of a List are separate objects. An error means that a file cannot be read.
// Problems are documents that are not valid YAML or not an object.
func Read(in io.Reader, paths ...string) (read []*Document, problems, err error) {
	var all []error
	for _, path := range paths {
		names := []string{path}
		if path != "-" {
			if names, err = find(path, IsObjects); err != nil {
				return nil, nil, err
			}
		}
		for _, name := range names {
			content, err := load(in, name)
			if err != nil {
				return nil, nil, err
			}
			documents, problems := Parse(name, content)
			read, all = append(read, documents...), append(all, problems)
		}
	}
	return read, errors.Join(all...), nil
}

func load(in io.Reader, name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(in)
	}
	return os.ReadFile(name)
}

// find returns the files at or below a directory whose names match, except in hidden directories. It returns the path of a file.
func find(path string, matches func(name string) bool) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return []string{path}, err
	}
	var names []string
	root := path + string(filepath.Separator) // Follows a symbolic link.
	err = filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != root && strings.HasPrefix(entry.Name(), "."):
			return fs.SkipDir
		case !entry.IsDir() && matches(name):
			names = append(names, name)
		}
		return nil
	})
	return names, err
}

// TestSuffix is the end of the names of files with tests. The suffix _test.yml is accepted as well.
const TestSuffix = "_test.yaml"

// IsTest returns whether a file contains tests, according to its name.
func IsTest(name string) bool {
	return strings.HasSuffix(name, TestSuffix) || strings.HasSuffix(name, "_test.yml")
}

// IsObjects returns whether a file of a directory contains objects, according to its name.
func IsObjects(name string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) && !IsTest(name)
}

// TestDirs returns the directories with tests at or below the directory, in order, except hidden ones.
func TestDirs(dir string) ([]string, error) {
	names, err := find(dir, IsTest)
	var dirs []string
	for _, name := range names {
		if IsTest(name) { // It can be the path itself.
			dirs = append(dirs, filepath.Dir(name))
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs), err
}

// Parse returns the objects of a file. The error joins the problems.
func Parse(file string, content []byte) ([]*Document, error) {
	var all []*Document
	var problems []error
	var document []byte
	before, number := 0, 0
	add := func() {
		documents, err := parse(file, before, document)
		all, problems = append(all, documents...), append(problems, err)
		document, before = nil, number
	}
	for line := range bytes.Lines(content) {
		if rest, ok := bytes.CutPrefix(line, []byte("---")); ok {
			add()
			line = rest // Such as a comment.
		}
		document = append(document, line...)
		number++
	}
	add()
	return all, errors.Join(problems...)
}

// parse returns the object of a document, or the items of a list.
func parse(file string, before int, content []byte) ([]*Document, error) {
	var root yaml.Node
	if err := yaml.Unmarshal(content, &root); err != nil {
		return nil, fmt.Errorf("%w; if this is an expression, quote it", located(file, before, err))
	}
	if root.Kind == 0 || len(root.Content) == 0 || root.Content[0].Tag == "!!null" {
		return nil, nil
	}
	encoded, err := sigsyaml.YAMLToJSONStrict(content)
	if err != nil {
		return nil, located(file, before, err)
	}
	d := &Document{File: file, before: before, node: root.Content[0]}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(encoded, &d.Object); err != nil {
		return nil, fmt.Errorf("%s: not a Kubernetes object", d.At(""))
	}
	if err := d.validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", d.At(""), err)
	}
	items, isList := d.Object["items"].([]any)
	if !isList || !strings.HasSuffix(d.GroupVersionKind().Kind, "List") {
		return []*Document{d}, nil
	}
	_, list := child(d.node, "items")
	var all []*Document
	for i, item := range items {
		_, node := child(list, strconv.Itoa(i))
		if node == nil { // A merge key adds the items.
			node = &yaml.Node{Line: d.node.Line}
		}
		object, _ := item.(map[string]any)
		inList := &Document{File: file, Unstructured: unstructured.Unstructured{Object: object}, before: before, node: node}
		if err := inList.validate(); err != nil {
			return nil, fmt.Errorf("%s: items[%d]: %w", d.At(""), i, err)
		}
		all = append(all, inList)
	}
	return all, nil
}

// validate returns an error if the document is not an object of Kubernetes.
func (d *Document) validate() error {
	if kind := d.GroupVersionKind(); kind.Kind == "" || kind.Version == "" {
		return errors.New("not a Kubernetes object: apiVersion and kind are required")
	}
	return nil
}

// lineNumber is a line in an error of a YAML library.
var lineNumber = regexp.MustCompile(`line \d+: `)

// located returns the error of a YAML library as one line that begins with the file and the line.
func located(file string, before int, err error) error {
	text := strings.Join(strings.Fields(strings.NewReplacer("yaml: ", "", "unmarshal errors: ", "", "error converting YAML to JSON: ", "").Replace(err.Error())), " ")
	text = lineNumber.ReplaceAllStringFunc(text, func(found string) string {
		number, _ := strconv.Atoi(strings.Trim(found, "line: "))
		return fmt.Sprintf("line %d: ", before+number)
	})
	if at := lineNumber.FindStringIndex(text); at != nil {
		return fmt.Errorf("%s:%s", file, text[at[0]+len("line "):])
	}
	return fmt.Errorf("%s: %s", file, text)
}
