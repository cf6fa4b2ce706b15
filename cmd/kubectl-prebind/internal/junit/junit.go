// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package junit writes test results as JUnit XML, as CI systems read them.
package junit

import (
	"encoding/xml"
	"fmt"
	"io"
	"slices"
)

// Suite is a group of cases.
type Suite struct {
	Name     string `xml:"name,attr"`
	Tests    int    `xml:"tests,attr"`
	Failures int    `xml:"failures,attr"`
	Errors   int    `xml:"errors,attr"`
	Skipped  int    `xml:"skipped,attr"`
	// Time of all cases in seconds.
	Time  string `xml:"time,attr,omitempty"`
	Cases []Case `xml:"testcase"`
}

// Case is one result. It passed if it has neither Failure, Error nor Skipped.
type Case struct {
	Suite string `xml:"classname,attr"`
	Name  string `xml:"name,attr"`
	File  string `xml:"file,attr,omitempty"`
	// Time in seconds.
	Time    string   `xml:"time,attr,omitempty"`
	Failure *Message `xml:"failure,omitempty"`
	Error   *Message `xml:"error,omitempty"`
	Skipped *Message `xml:"skipped,omitempty"`
	Output  string   `xml:"system-out,omitempty"`
}

// Message is the reason of a result.
type Message struct {
	// Message is one line.
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// Write writes the suites. It sets their numbers, and the suites of the cases.
func Write(out io.Writer, suites []Suite) error {
	for i := range suites {
		s := &suites[i]
		s.Tests = len(s.Cases)
		for j := range s.Cases {
			c := &s.Cases[j]
			c.Suite = s.Name
			switch {
			case c.Failure != nil:
				s.Failures++
			case c.Error != nil:
				s.Errors++
			case c.Skipped != nil:
				s.Skipped++
			}
		}
	}
	report := struct {
		XMLName xml.Name `xml:"testsuites"`
		Suites  []Suite  `xml:"testsuite"`
	}{Suites: suites}
	encoded, err := xml.MarshalIndent(report, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the JUnit report: %w", err)
	}
	_, err = out.Write(slices.Concat([]byte(xml.Header), encoded, []byte("\n")))
	return err
}
