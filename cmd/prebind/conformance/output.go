// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// guide is the page with the contract.
const guide = "https://github.com/prebind/prebind/blob/main/docs/for-schedulers.md"

// WriteText writes a table, and a summary with the necessary changes of the scheduler.
func (r *Report) WriteText(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "CHECK\tRESULT\tDURATION\tDETAIL")
	for _, x := range r.Results {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", x.Check, x.Status, rounded(x.Duration), oneLine(x.Detail))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	count := map[Status]int{}
	for _, x := range r.Results {
		count[x.Status]++
	}
	_, err := fmt.Fprintf(out, "\nScheduler %s: %d passed, %d failed, %d skipped, %d without a result.\n", r.Scheduler, count[Pass], count[Fail], count[Skipped], count[Errored]+count[NoResult])
	for _, x := range r.Results {
		if x.Status == Fail && err == nil {
			_, err = fmt.Fprintf(out, "\n%s: %s\n  See %s\n", x.Check, oneLine(x.Advice), x.link())
		}
	}
	return err
}

// link returns the address of the rule.
func (r Result) link() string { return guide + "#" + r.Section }

// rounded formats the duration of a check.
func rounded(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return seconds(d)
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// The elements of a JUnit report, as CI systems read them.
type (
	junitSuite struct {
		XMLName  xml.Name    `xml:"testsuite"`
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Errors   int         `xml:"errors,attr"`
		Skipped  int         `xml:"skipped,attr"`
		Time     string      `xml:"time,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Suite   string        `xml:"classname,attr"`
		Name    string        `xml:"name,attr"`
		Time    string        `xml:"time,attr"`
		Failure *junitMessage `xml:"failure,omitempty"`
		Error   *junitMessage `xml:"error,omitempty"`
		Skipped *junitMessage `xml:"skipped,omitempty"`
		Output  string        `xml:"system-out,omitempty"`
	}
	junitMessage struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

// WriteJUnit writes the results as JUnit XML.
func (r *Report) WriteJUnit(out io.Writer) error {
	suite := junitSuite{Name: "prebind conformance of " + r.Scheduler, Tests: len(r.Results)}
	var total time.Duration
	for _, x := range r.Results {
		c := junitCase{Suite: suite.Name, Name: x.Check, Time: inSeconds(x.Duration)}
		total += x.Duration
		switch x.Status {
		case Pass:
			c.Output = x.Detail
		case Fail:
			suite.Failures++
			c.Failure = &junitMessage{Message: oneLine(x.Detail), Text: x.Advice + "\nSee " + x.link()}
		case Errored:
			suite.Errors++
			c.Error = &junitMessage{Message: oneLine(x.Detail)}
		case Skipped:
			suite.Skipped++
			c.Skipped = &junitMessage{Message: oneLine(x.Detail)}
		case NoResult:
			suite.Skipped++
			c.Skipped = &junitMessage{Message: "no result: " + oneLine(x.Detail)}
		}
		suite.Cases = append(suite.Cases, c)
	}
	suite.Time = inSeconds(total)
	encoded, err := xml.MarshalIndent(suite, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the JUnit report: %w", err)
	}
	_, err = out.Write(slices.Concat([]byte(xml.Header), encoded, []byte("\n")))
	return err
}

func inSeconds(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()) }
