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
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"
	sigsyaml "sigs.k8s.io/yaml"
)

// Document is one object of a file.
type Document struct {
	// File is the name of the file, or "-" for the standard input.
	File string
	// Object has the types of JSON. It is nil if the document is not valid YAML.
	Object map[string]any

	node *yaml.Node
	line int
}

// Kind returns the kind of the object. Parts that the document lacks are empty.
func (d *Document) Kind() schema.GroupVersionKind {
	version, _ := d.Object["apiVersion"].(string)
	kind, _ := d.Object["kind"].(string)
	return schema.FromAPIVersionAndKind(version, kind)
}

// Name returns metadata.name, or an empty string.
func (d *Document) Name() string {
	name, _, _ := unstructured.NestedString(d.Object, "metadata", "name")
	return name
}

// At returns the file and the line of a field, such as "policy.yaml:12". Without such a field, it is the
// line of the closest parent. The path has the form spec.validations[0].expression.
func (d *Document) At(path string) string {
	node, line := d.node, d.node.Line+d.line-1
	for _, step := range steps(path) {
		key, value := child(node, step)
		if value == nil {
			break
		}
		line, node = key.Line+d.line-1, value
	}
	return d.File + ":" + strconv.Itoa(line)
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
		for i, item := range of.Content {
			if strconv.Itoa(i) == step {
				return item, item
			}
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
		names, err := expand(path)
		if err != nil {
			return nil, nil, err
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

// expand returns the files of a directory, or the path.
func expand(path string) ([]string, error) {
	if path == "-" {
		return []string{path}, nil
	}
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
		case !entry.IsDir() && IsObjects(name):
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

// TestDirs returns the directories with tests at or below the directory, in order.
func TestDirs(dir string) ([]string, error) {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && IsTest(path) {
			dirs = append(dirs, filepath.Dir(path))
		}
		return err
	})
	slices.Sort(dirs)
	return slices.Compact(dirs), err
}

// Parse returns the objects of a file. The error joins the problems.
func Parse(file string, content []byte) ([]*Document, error) {
	var all []*Document
	var problems []error
	for _, part := range split(content) {
		documents, err := parse(file, part.line, part.content)
		all, problems = append(all, documents...), append(problems, err)
	}
	return all, errors.Join(problems...)
}

// part is one document of a file.
type part struct {
	line    int
	content []byte
}

// split splits a file into its documents.
func split(content []byte) []part {
	parts := []part{{line: 1}}
	for i, line := range bytes.SplitAfter(content, []byte("\n")) {
		if rest, ok := bytes.CutPrefix(line, []byte("---")); ok {
			// The rest of the line, such as a comment, is part of the document.
			parts = append(parts, part{line: i + 1, content: rest})
			continue
		}
		last := &parts[len(parts)-1]
		last.content = append(last.content, line...)
	}
	return parts
}

// parse returns the object of a document, or the items of a list.
func parse(file string, line int, content []byte) ([]*Document, error) {
	fail := func(line int, err error) error { return fmt.Errorf("%s:%d: %w", file, line, err) }
	var root yaml.Node
	if err := yaml.Unmarshal(content, &root); err != nil {
		at, err := located(err, line)
		return nil, fail(at, fmt.Errorf("%w; if this is an expression, quote it", err))
	}
	if root.Kind == 0 || len(root.Content) == 0 || root.Content[0].Tag == "!!null" {
		return nil, nil
	}
	encoded, err := sigsyaml.YAMLToJSONStrict(content)
	if err != nil {
		return nil, fail(located(err, line))
	}
	first := root.Content[0].Line + line - 1
	var object map[string]any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(encoded, &object); err != nil {
		return nil, fail(first, errors.New("not a Kubernetes object"))
	}
	d, err := newDocument(file, object, root.Content[0], line)
	if err != nil {
		return nil, fail(first, err)
	}
	items, isList := d.Object["items"].([]any)
	if !isList || !strings.HasSuffix(d.Kind().Kind, "List") {
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
		d, err := newDocument(file, object, node, line)
		if err != nil {
			return nil, fail(first, fmt.Errorf("items[%d]: %w", i, err))
		}
		all = append(all, d)
	}
	return all, nil
}

// newDocument returns the document with the object. The lines of the node count from the line of the file.
func newDocument(file string, object map[string]any, node *yaml.Node, line int) (*Document, error) {
	d := &Document{File: file, Object: object, node: node, line: line}
	if kind := d.Kind(); kind.Kind == "" || kind.Version == "" {
		return nil, errors.New("not a Kubernetes object: apiVersion and kind are required")
	}
	return d, nil
}

// located returns the line and the text of an error of a YAML library, whose lines begin with the
// document.
func located(err error, line int) (int, error) {
	text := strings.Join(strings.Fields(strings.NewReplacer("yaml: ", "", "unmarshal errors: ", "", "error converting YAML to JSON: ", "").Replace(err.Error())), " ")
	_, after, found := strings.Cut(text, "line ")
	number, rest, ok := strings.Cut(after, ": ")
	if at, err := strconv.Atoi(number); found && ok && err == nil {
		return at + line - 1, errors.New(rest)
	}
	return line, errors.New(text)
}
