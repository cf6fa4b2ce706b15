// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"errors"
	"time"
)

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
	Namespace string
	Results   []Result
}

// Any returns whether a check has the status.
func (r *Report) Any(s Status) bool {
	for _, result := range r.Results {
		if result.Status == s {
			return true
		}
	}
	return false
}

// violation is an error of a check whose scheduler does not conform.
type violation struct{ what, advice string }

func (v *violation) Error() string { return v.what }

// skip is an error of a check that cannot be made.
type skip struct{ why string }

func (s *skip) Error() string { return s.why }

// unclear is an error of a check on a cluster that is too slow to judge the scheduler.
type unclear struct{ why string }

func (u *unclear) Error() string { return u.why }

// resultOf converts the outcome of a check.
func resultOf(c check, took time.Duration, detail string, err error) Result {
	r := Result{Check: c.name, Status: Pass, Duration: took, Detail: detail, Section: c.section}
	var v *violation
	var s *skip
	var u *unclear
	switch {
	case err == nil:
	case errors.As(err, &v):
		r.Status, r.Detail, r.Advice = Fail, v.what, v.advice
	case errors.As(err, &s):
		r.Status, r.Detail = Skipped, s.why
	case errors.As(err, &u):
		r.Status, r.Detail = NoResult, u.why
	default:
		r.Status, r.Detail = Errored, err.Error()
	}
	return r
}

// excuse removes the result of a check that did not pass, if the text describes an overload of the cluster.
func (r *Result) excuse(overload string) {
	if overload == "" || r.Status != Fail && r.Status != Errored {
		return
	}
	r.Detail = overload + "; " + string(r.Status) + ": " + r.Detail
	r.Status, r.Advice = NoResult, ""
}
