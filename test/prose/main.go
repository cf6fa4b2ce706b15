// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Prose checks the English of documentation, comments and string literals against rules.yaml and prints each violation as
// file:line. Without arguments it checks the repository; with paths it checks those.
package main

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
)

func main() {
	rules, err := loadRules(ruleData)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	roots := os.Args[1:]
	if len(roots) == 0 {
		roots = []string{"."}
	}
	found := 0
	for _, root := range roots {
		n, err := checkTree(root, rules)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		found += n
	}
	if found > 0 {
		fmt.Fprintf(os.Stderr, "%d violations; the rules are in test/prose/rules.yaml\n", found)
		os.Exit(1)
	}
}

// skipped are directories and files that contain no prose of this project.
var skipped = []string{".git", "bin", "fuzz", "LICENSE", "go.sum", "tools.sum", "go.mod", "tools.mod", "rules.yaml", "rules_test.go"}

// checked are the extensions of files that contain prose; files without an extension, such as Makefile, contain some too.
var checked = []string{"", ".go", ".md", ".gotmpl", ".yaml", ".yml", ".tpl", ".txt", ".json", ".sh"}

// checkTree prints the violations in all files at and below root and returns their number.
func checkTree(root string, rules []rule) (int, error) {
	found := 0
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		name = filepath.ToSlash(name)
		switch {
		case err != nil:
			return err
		case slices.Contains(skipped, path.Base(name)):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.IsDir(), !slices.Contains(checked, path.Ext(name)):
			return nil
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for _, v := range check(extract(name, content), rules) {
			fmt.Printf("%s:%d: %q: write %s\n", name, v.line, v.found, v.rule.Write)
			found++
		}
		return nil
	})
	return found, err
}
