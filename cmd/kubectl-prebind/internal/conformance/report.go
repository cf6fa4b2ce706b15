// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jstemmer/go-junit-report/v2/junit"

	"github.com/prebind/prebind/cmd/internal/cli"
)

// guide is the page with the contract.
var guide = cli.Documentation("for-schedulers.md")

// Status is the result of a check.
type Status string

// Results of a check.
const (
	// Pass means that the scheduler conforms.
	Pass Status = "PASS"
	// Fail means that it does not.
	Fail Status = "FAIL"
	// Skipped means that the check could not be made on this cluster. Detail contains the reason.
	Skipped Status = "SKIPPED"
	// Errored means that the check broke off, for example because of an error of the API server. It says nothing about the scheduler.
	Errored Status = "ERROR"
	// NoResult means that the cluster was too slow to judge the scheduler. It says nothing about the scheduler.
	NoResult Status = "NO RESULT"
)

// Result is the result of one check.
type Result struct {
	Check    string
	Status   Status
	Duration time.Duration
	// Detail is what was observed, in one line.
	Detail string
	// Advice is what the author of the scheduler should change. Only failed checks have it.
	Advice string
	// Section is the section of docs/for-schedulers.md with the rule.
	Section string
}

// Report is the result of a run.
type Report struct {
	Scheduler string
	Results   []Result
}

// Any returns whether a check has the status.
func (r *Report) Any(s Status) bool {
	return slices.ContainsFunc(r.Results, func(x Result) bool { return x.Status == s })
}

// WriteText writes a table, and a summary with the necessary changes of the scheduler.
func (r *Report) WriteText(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "CHECK\tRESULT\tDURATION\tDETAIL")
	count := map[Status]int{}
	var changes strings.Builder
	for _, x := range r.Results {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", x.Check, x.Status, seconds(x.Duration), x.Detail)
		count[x.Status]++
		if x.Status == Fail {
			fmt.Fprintf(&changes, "\n%s: %s\n  See %s#%s\n", x.Check, x.Advice, guide, x.Section)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\nScheduler %s: %d passed, %d failed, %d skipped, %d without a result.\n%s",
		r.Scheduler, count[Pass], count[Fail], count[Skipped], count[Errored]+count[NoResult], changes.String())
	return err
}

// seconds formats a duration.
func seconds(d time.Duration) string { return d.Round(10 * time.Millisecond).String() }

// WriteJUnit writes the results as JUnit XML.
func (r *Report) WriteJUnit(out io.Writer) error {
	suite := junit.Testsuite{Name: "prebind conformance of " + r.Scheduler}
	var total time.Duration
	for _, x := range r.Results {
		c := junit.Testcase{Name: x.Check, Classname: suite.Name, Time: fmt.Sprintf("%.3f", x.Duration.Seconds())}
		total += x.Duration
		switch x.Status {
		case Pass:
			c.SystemOut = &junit.Output{Data: x.Detail}
		case Fail:
			c.Failure = &junit.Result{Message: x.Detail, Data: x.Advice + "\nSee " + guide + "#" + x.Section}
		case Errored:
			c.Error = &junit.Result{Message: x.Detail}
		case Skipped, NoResult:
			c.Skipped = &junit.Result{Message: x.Detail}
		}
		suite.AddTestcase(c)
	}
	suite.Time = fmt.Sprintf("%.3f", total.Seconds())
	report := junit.Testsuites{}
	report.AddSuite(suite)
	return report.WriteXML(out)
}
