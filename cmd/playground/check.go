// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/prebind/prebind/internal/policy/cases"
)

// The names of the files in messages. Without a directory, they are those that kubectl prebind policy test shows for the current directory.
const (
	policyFile = "policy.yaml"
	testFile   = "policy_test.yaml"
)

// report is what the page shows of a policy and its test. In JSON, it has the names of the Go fields.
type report struct {
	// Text is the output of kubectl prebind policy test in a directory with the policy and the test.
	Text string
	// Errors are the reasons why cases did not run.
	Errors []message
	// Warnings are those of kubectl prebind policy check.
	Warnings []message
	Cases    []cases.CaseResult
}

// message is about a line of a file. Without a known line, both are empty.
type message struct {
	File string
	Line int
	Text string
}

// check runs the cases of a test with the policies, like kubectl prebind policy test.
func check(ctx context.Context, policies, test string) *report {
	result := cases.RunFiles(ctx, ".", []cases.File{{Name: policyFile, Content: []byte(policies)}, {Name: testFile, Content: []byte(test)}})
	r := &report{Errors: messagesOf(result.Err), Cases: result.Cases}
	var text strings.Builder
	_ = result.WriteText(&text, false) // A strings.Builder returns no errors.
	r.Text = text.String()
	for _, p := range result.Policies {
		for _, w := range p.Warnings {
			r.Warnings = append(r.Warnings, located(p.At(w.FieldRef)+": "+w.FieldRef+": "+w.Warning))
		}
	}
	return r
}

// messagesOf returns a message for each error that err joins.
func messagesOf(err error) []message {
	var joined interface{ Unwrap() []error }
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &joined):
		return []message{located(err.Error())}
	}
	var all []message
	for _, e := range joined.Unwrap() {
		all = append(all, messagesOf(e)...)
	}
	return all
}

// located splits a text that begins with a file and a line, such as "policy.yaml:12: ".
func located(text string) message {
	at, rest, _ := strings.Cut(text, ": ")
	file, number, _ := strings.Cut(at, ":")
	if line, err := strconv.Atoi(number); err == nil && (file == policyFile || file == testFile) {
		return message{File: file, Line: line, Text: rest}
	}
	return message{Text: text}
}
