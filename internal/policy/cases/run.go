// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/internal/policy/files"
)

// Result is the result of the tests of a directory.
type Result struct {
	Dir string
	// Policies are the policies of the directory, in the order of their names. If one has problems, Err is set.
	Policies []*files.Policy
	// Cases are the results of the cases, in the order of the files and of the cases in them.
	Cases []CaseResult
	// Err is the reason why cases did not run, one line per problem.
	Err error
}

// Failed returns whether the tests failed.
func (r *Result) Failed() bool {
	return r.Err != nil || slices.ContainsFunc(r.Cases, func(c CaseResult) bool { return len(c.Failures) > 0 })
}

// CaseResult is the result of a case.
type CaseResult struct {
	// File and Name identify the case.
	File, Name string
	// Results are the results of all policies, in the order of their names.
	Results []policy.Result
	// Failures describe differences from the expected results. Each can have several lines. A case without
	// failures passed.
	Failures []string
}

// File is a file of a directory with tests.
type File struct {
	Name    string
	Content []byte
}

// Run runs the tests of a directory: it tests the policies of the files *.yaml, *.yml and *.json with the
// cases of the files *_test.yaml and *_test.yml. An error means that a file cannot be read.
func Run(ctx context.Context, dir string) (*Result, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []File
	for _, entry := range entries {
		name := filepath.Join(dir, entry.Name())
		if entry.IsDir() || !files.IsTest(name) && !files.IsObjects(name) {
			continue
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		all = append(all, File{Name: name, Content: content})
	}
	return RunFiles(ctx, dir, all), nil
}

// RunFiles runs the tests of the files of a directory, as Run does, without reading them. The policies are compiled for
// each file with tests, because its keyPrefixes apply.
func RunFiles(ctx context.Context, dir string, all []File) *Result {
	r := &Result{Dir: dir}
	var documents []*files.Document
	for _, f := range all {
		if files.IsObjects(f.Name) {
			parsed, problems := files.Parse(f.Name, f.Content)
			documents, r.Err = append(documents, parsed...), errors.Join(r.Err, problems)
		}
	}
	for _, f := range all {
		if files.IsTest(f.Name) {
			r.Err = errors.Join(r.Err, r.file(ctx, documents, f.Name, f.Content))
		}
	}
	return r
}

// file runs the tests of a file.
func (r *Result) file(ctx context.Context, documents []*files.Document, name string, content []byte) error {
	tests, err := files.Parse(name, content)
	if err != nil {
		return err
	}
	if len(tests) == 0 {
		return fmt.Errorf("%s: the file contains no test", name)
	}
	var invalid []error
	for _, d := range tests {
		t, err := decode(d)
		if err != nil {
			return err
		}
		policies, err := files.Check(ctx, documents, policy.Options{KeyPrefixes: t.KeyPrefixes})
		r.Policies = slices.SortedFunc(slices.Values(policies), func(a, b *files.Policy) int { return strings.Compare(a.GetName(), b.GetName()) })
		if err := errors.Join(err, usable(policies)); err != nil {
			return err
		}
		if len(policies) == 0 {
			return fmt.Errorf("%s: the directory contains no BindPolicy", d.At(""))
		}
		for i := range t.Cases {
			result, err := run(ctx, r.Policies, t, &t.Cases[i])
			if err != nil {
				invalid = append(invalid, fmt.Errorf("%s: case %q: %w", d.At(fmt.Sprintf("cases[%d]", i)), t.Cases[i].Name, err))
				continue
			}
			result.File = name
			r.Cases = append(r.Cases, *result)
		}
	}
	return errors.Join(invalid...)
}

// usable returns an error for each policy with problems.
func usable(policies []*files.Policy) error {
	var all []error
	for _, p := range policies {
		for _, problem := range p.Problems {
			all = append(all, fmt.Errorf("%s: BindPolicy %s: %w", p.At(problem.Field), p.GetName(), &problem))
		}
	}
	return errors.Join(all...)
}

// decode decodes and validates a test.
func decode(d *files.Document) (*Test, error) {
	if d.GroupVersionKind() != Kind {
		return nil, fmt.Errorf("%s: %s: files with the suffix %s may contain only %s", d.At("kind"), d.GroupVersionKind(), files.TestSuffix, Kind)
	}
	var t Test
	var problems []error
	problem := func(path, format string, args ...any) {
		problems = append(problems, fmt.Errorf("%s: %s: %w", d.At(path), path, fmt.Errorf(format, args...)))
	}
	for _, p := range files.DecodeStrict(d.Object, &t) {
		problems = append(problems, fmt.Errorf("%s: %w", d.At(p.Field), &p))
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	if _, err := newWorld(t.Objects, nil); err != nil {
		problem("objects", "%w", err)
	}
	if len(t.Cases) == 0 {
		problem("cases", "required")
	}
	for i, c := range t.Cases {
		path := fmt.Sprintf("cases[%d]", i)
		switch {
		case c.Name == "":
			problem(path+".name", "required")
		case len(c.Expect) == 0:
			problem(path+".expect", "required")
		}
		for j, e := range c.Expect {
			if !slices.Contains(policy.Verdicts, e.Verdict) {
				problem(fmt.Sprintf("%s.expect[%d].verdict", path, j), "must be one of %q, got %q", policy.Verdicts, e.Verdict)
			}
		}
	}
	return &t, errors.Join(problems...)
}

// run runs a case. An error means that the case is invalid.
func run(ctx context.Context, policies []*files.Policy, t *Test, c *Case) (*CaseResult, error) {
	w, err := newWorld(t.Objects, c.Objects)
	if err != nil {
		return nil, err
	}
	s, err := w.subject(c)
	if err != nil {
		return nil, err
	}
	result := &CaseResult{Name: c.Name}
	for _, p := range policies {
		got, err := p.Compiled.Evaluate(ctx, s, &reader{world: w, node: s.Node.Name})
		if err != nil {
			return nil, fmt.Errorf("BindPolicy %s: %w", p.GetName(), err)
		}
		result.Results = append(result.Results, got)
	}
	for _, e := range c.Expect {
		i, err := find(policies, e.Policy)
		if err != nil {
			return nil, err
		}
		result.Failures = append(result.Failures, e.differences(&result.Results[i])...)
	}
	return result, nil
}

// find returns the index of the policy with the name. An empty name means the only one.
func find(policies []*files.Policy, name string) (int, error) {
	var names []string
	for i, p := range policies {
		if p.GetName() == name || name == "" && len(policies) == 1 {
			return i, nil
		}
		names = append(names, p.GetName())
	}
	return 0, fmt.Errorf("expect: policy %q: must be one of %s", name, strings.Join(names, ", "))
}
