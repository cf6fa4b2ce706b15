// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

const module = "github.com/prebind/prebind"

// goAPI are the packages, relative to the module, whose exported names are part of the API. The module client is in addition.
var goAPI = []string{"binder/framework", "binder/framework/frameworktest", "cmd/prebind/app", "config/v1alpha1", "mutators", "policy/v1alpha1"}

// outputs are the packages with the types that the commands print as JSON and YAML.
var outputs = []string{"binder", "internal/work", "binder/framework", "internal/replica", "cmd/kubectl-prebind/app"}

// listed is a package as 'go list' describes it.
type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
	Module                  *struct{ Path string }
}

// addGo adds the exported names of the API packages, and the names that other packages define as constants.
func (i items) addGo(ctx context.Context) error {
	root := []string{"./cmd/prebind", "./cmd/kubectl-prebind"}
	for _, name := range goAPI {
		root = append(root, "./"+name)
	}
	for dir, patterns := range map[string][]string{".": root, "client": {".", "./handler"}} {
		packages, err := goList(ctx, dir, patterns...)
		if err != nil {
			return err
		}
		exports := map[string]string{}
		for _, p := range packages {
			exports[p.ImportPath] = p.Export
		}
		fset := token.NewFileSet()
		imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
		for _, p := range packages {
			if p.Module == nil || p.Module.Path != module && !strings.HasPrefix(p.Module.Path, module+"/") {
				continue
			}
			pkg, err := check(fset, imports, p)
			if err != nil {
				return err
			}
			short := strings.TrimPrefix(p.ImportPath, module+"/")
			i.addConstants(pkg)
			if slices.Contains(outputs, short) {
				i.addOutputs(pkg)
			}
			if strings.HasPrefix(p.ImportPath, module+"/client") || slices.Contains(goAPI, short) {
				exported{i, short, pkg}.addAll()
			}
		}
	}
	return nil
}

// goList returns the packages and their dependencies, with compiled export data.
func goList(ctx context.Context, dir string, patterns ...string) ([]listed, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,Module"}, patterns...)...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the Go packages in %s: %w\n%s", dir, err, &stderr)
	}
	var all []listed
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		switch err := decoder.Decode(&p); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, fmt.Errorf("read the output of go list: %w", err)
		}
		all = append(all, p)
	}
}

// check returns the types of the package, from its sources.
func check(fset *token.FileSet, imports types.Importer, p listed) (*types.Package, error) {
	var files []*ast.File
	for _, name := range p.GoFiles {
		// The names of generated methods say nothing.
		if strings.HasPrefix(name, "zz_generated.") {
			continue
		}
		file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	config := types.Config{Importer: imports, IgnoreFuncBodies: true}
	return config.Check(p.ImportPath, fset, files, nil)
}

// categories assign constants to categories by name or value. All other constants that are not exported from goAPI are internal.
var categories = []struct {
	category    string
	name, value *regexp.Regexp
}{
	{"key", nil, regexp.MustCompile(`^([a-z0-9-]+\.)*prebind\.dev(/.*)?$`)},
	{"trace-attribute", nil, regexp.MustCompile(`^prebind\.[a-z]+$`)},
	{"reason", regexp.MustCompile(`^[rR]eason[A-Z]`), nil},
	{"cause", regexp.MustCompile(`^Cause[A-Z]`), nil},
	{"audit-annotation", regexp.MustCompile(`^AuditKey[A-Z]`), nil},
	{"exit-code", regexp.MustCompile(`^exit[A-Z]`), nil},
}

// addConstants adds the values of constants that users see.
func (i items) addConstants(pkg *types.Package) {
	for _, name := range pkg.Scope().Names() {
		c, ok := pkg.Scope().Lookup(name).(*types.Const)
		if !ok {
			continue
		}
		value := c.Val().ExactString()
		if c.Val().Kind() == constant.String {
			value = constant.StringVal(c.Val())
		}
		for _, known := range categories {
			if (known.name == nil || known.name.MatchString(name)) && (known.value == nil || known.value.MatchString(value)) {
				i.add(known.category, value, "")
				break
			}
		}
	}
}

// addOutputs adds the JSON fields of the package's types.
func (i items) addOutputs(pkg *types.Package) {
	for _, name := range pkg.Scope().Names() {
		object, ok := pkg.Scope().Lookup(name).(*types.TypeName)
		if !ok {
			continue
		}
		fields, ok := object.Type().Underlying().(*types.Struct)
		if !ok || object.IsAlias() {
			continue
		}
		for n := range fields.NumFields() {
			if tag, ok := reflect.StructTag(fields.Tag(n)).Lookup("json"); ok {
				key, _, _ := strings.Cut(tag, ",")
				i.add("json", name+"."+key, types.TypeString(fields.Field(n).Type(), func(p *types.Package) string { return p.Name() }))
			}
		}
	}
}
