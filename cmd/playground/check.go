// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/internal/policy/cases"
)

// The names of the files in messages. Without a directory, they are those that kubectl prebind policy test shows for the current directory.
const (
	policyFile = "policy.yaml"
	testFile   = "policy_test.yaml"
)

// report is what the page shows of a policy and its test.
type report struct {
	// Text is the output of kubectl prebind policy test in a directory with the policy and the test.
	Text string `json:"text"`
	// Errors are the reasons why cases did not run.
	Errors []message `json:"errors"`
	// Warnings are those of kubectl prebind policy check.
	Warnings []message    `json:"warnings"`
	Cases    []caseReport `json:"cases"`
}

// message is about a line of a file. Without a known line, both are empty.
type message struct {
	File string `json:"file"`
	Line int    `json:"line"`
	Text string `json:"text"`
}

// caseReport is the result of a case. It passed if there are no failures.
type caseReport struct {
	Name     string    `json:"name"`
	Failures []string  `json:"failures"`
	Verdicts []verdict `json:"verdicts"`
}

// verdict is the result of a policy for the bind of a case.
type verdict struct {
	Policy      string            `json:"policy"`
	Verdict     policy.Verdict    `json:"verdict"`
	Audit       bool              `json:"audit"`
	Rule        string            `json:"rule"`
	Message     string            `json:"message"`
	Annotations map[string]string `json:"annotations"`
	Labels      map[string]string `json:"labels"`
	Tasks       []task            `json:"tasks"`
	Waived      []string          `json:"waived"`
	Cost        uint64            `json:"cost"`
}

// task is a task that the bind waits for.
type task struct {
	Name       string            `json:"name"`
	Handler    string            `json:"handler"`
	Parameters map[string]string `json:"parameters"`
}

// check runs the cases of a test with the policies, like kubectl prebind policy test.
func check(ctx context.Context, policies, test string) *report {
	result := cases.RunFiles(ctx, ".", []cases.File{{Name: policyFile, Content: []byte(policies)}, {Name: testFile, Content: []byte(test)}})
	r := &report{Errors: messagesOf(result.Err)}
	var text strings.Builder
	_ = result.WriteText(&text, false) // A strings.Builder returns no errors.
	r.Text = text.String()
	for _, p := range result.Policies {
		for _, w := range p.Warnings {
			r.Warnings = append(r.Warnings, located(p.At(w.FieldRef)+": "+w.FieldRef+": "+w.Warning))
		}
	}
	for _, c := range result.Cases {
		of := caseReport{Name: c.Name, Failures: c.Failures}
		for i := range c.Results {
			of.Verdicts = append(of.Verdicts, verdictOf(&c.Results[i]))
		}
		r.Cases = append(r.Cases, of)
	}
	return r
}

func verdictOf(r *policy.Result) verdict {
	v := verdict{
		Policy: r.Policy, Verdict: r.Verdict, Audit: r.Audit, Rule: r.Rule, Message: r.Message,
		Annotations: r.Annotations, Labels: r.Labels, Waived: r.Waived, Cost: r.Cost,
	}
	for _, t := range r.Tasks {
		v.Tasks = append(v.Tasks, task{Name: t.Name, Handler: t.Handler, Parameters: t.Parameters})
	}
	return v
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
