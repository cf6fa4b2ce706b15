// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strings"
)

// WriteText writes the failures of a directory, and a summary in one line.
func (r *Result) WriteText(out io.Writer) error {
	failed := 0
	for _, c := range r.Cases {
		if len(c.Failures) == 0 {
			continue
		}
		failed++
		fmt.Fprintf(out, "--- FAIL: %s (%s)\n%s\n", c.Name, c.File, indent(strings.Join(c.Failures, "\n")))
	}
	if r.Err != nil {
		fmt.Fprintln(out, r.Err)
	}
	var err error
	switch {
	case r.Err != nil:
		_, err = fmt.Fprintf(out, "FAIL  %s  %s, invalid\n", r.Dir, count(len(r.Cases)))
	case failed > 0:
		_, err = fmt.Fprintf(out, "FAIL  %s  %s, %d failed\n", r.Dir, count(len(r.Cases)), failed)
	default:
		_, err = fmt.Fprintf(out, "ok    %s  %s\n", r.Dir, count(len(r.Cases)))
	}
	return err
}

func count(cases int) string {
	if cases == 1 {
		return "1 case"
	}
	return fmt.Sprintf("%d cases", cases)
}

func indent(text string) string { return "    " + strings.ReplaceAll(text, "\n", "\n    ") }

// The elements of a JUnit report, as CI systems read them.
type (
	junitSuites struct {
		XMLName xml.Name     `xml:"testsuites"`
		Suites  []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Errors   int         `xml:"errors,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Suite   string        `xml:"classname,attr"`
		Name    string        `xml:"name,attr"`
		File    string        `xml:"file,attr,omitempty"`
		Failure *junitMessage `xml:"failure,omitempty"`
		Error   *junitMessage `xml:"error,omitempty"`
	}
	junitMessage struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

// WriteJUnit writes the results as JUnit XML.
func WriteJUnit(out io.Writer, results []*Result) error {
	var report junitSuites
	for _, r := range results {
		s := junitSuite{Name: r.Dir, Tests: len(r.Cases)}
		for _, c := range r.Cases {
			reported := junitCase{Suite: r.Dir, Name: c.Name, File: c.File}
			if len(c.Failures) > 0 {
				s.Failures++
				reported.Failure = message(strings.Join(c.Failures, "\n"))
			}
			s.Cases = append(s.Cases, reported)
		}
		if r.Err != nil {
			s.Tests, s.Errors = s.Tests+1, s.Errors+1
			s.Cases = append(s.Cases, junitCase{Suite: r.Dir, Name: "files are valid", Error: message(r.Err.Error())})
		}
		report.Suites = append(report.Suites, s)
	}
	encoded, err := xml.MarshalIndent(report, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the JUnit report: %w", err)
	}
	_, err = out.Write(slices.Concat([]byte(xml.Header), encoded, []byte("\n")))
	return err
}

// message returns a text with its first line as the summary.
func message(text string) *junitMessage {
	first, _, _ := strings.Cut(text, "\n")
	return &junitMessage{Message: first, Text: text}
}
