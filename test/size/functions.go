// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// functions prints the functions that a default bind passes through: those that a benchmark of the review calls more often if it
// reviews more Bindings.
func functions(ctx context.Context) error {
	module, err := exec.CommandContext(ctx, "go", "list", "-m").Output()
	if err != nil {
		return fmt.Errorf("finding the name of the module: %w", err)
	}
	once, err := profile(ctx, "1x")
	if err != nil {
		return err
	}
	often, err := profile(ctx, "5x")
	if err != nil {
		return err
	}
	called := map[string]bool{}
	for block, count := range often {
		if count <= once[block] {
			continue
		}
		file, position, _ := strings.Cut(block, ":")
		name, err := functionAt(strings.TrimPrefix(file, string(bytes.TrimSpace(module))+"/"), position)
		if err != nil {
			return err
		}
		called[name] = true
	}
	var names []string
	for name := range called {
		names = append(names, name)
	}
	slices.Sort(names)
	fmt.Println(strings.Join(names, "\n"))
	fmt.Println(len(names), "functions")
	return nil
}

// profile returns how often each block of the product runs while that many Bindings are reviewed.
func profile(ctx context.Context, reviews string) (map[string]int, error) {
	dir, err := os.MkdirTemp("", "prebind-size-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	out := filepath.Join(dir, "cover")
	test := exec.CommandContext(ctx, "go", "test", "./cmd/prebind/app", "-run=^$", "-bench=BenchmarkAdmission/webhook=prebind$", "-benchtime="+reviews,
		"-covermode=count", "-coverpkg=./binder/...,./webhook/...,./mutators/...,./internal/...,./cmd/...", "-coverprofile="+out)
	if printed, err := test.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("reviewing Bindings: %w\n%s", err, printed)
	}
	content, err := os.ReadFile(out)
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for lines := bufio.NewScanner(bytes.NewReader(content)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) != 3 { // The mode.
			continue
		}
		count, err := strconv.Atoi(fields[2])
		if err != nil {
			return nil, err
		}
		counts[fields[0]] += count
	}
	return counts, nil
}

// functionAt returns the function at a position of a coverage profile, such as "12.3,15.4". A function literal counts as the function that
// contains it.
func functionAt(name, position string) (string, error) {
	first, _, _ := strings.Cut(position, ".")
	line, err := strconv.Atoi(first)
	if err != nil {
		return "", err
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, nil, 0)
	if err != nil {
		return "", err
	}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || line < files.Position(f.Pos()).Line || line > files.Position(f.End()).Line {
			continue
		}
		receiver := ""
		if f.Recv != nil {
			receiver = types(f.Recv.List[0].Type) + "."
		}
		return filepath.Dir(name) + " " + receiver + f.Name.Name, nil
	}
	return filepath.Dir(name) + " " + position, nil
}

// types returns the name of a receiver's type.
func types(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return types(e.X)
	case *ast.IndexExpr:
		return types(e.X)
	case *ast.IndexListExpr:
		return types(e.X)
	case *ast.Ident:
		return e.Name
	default:
		return ""
	}
}
