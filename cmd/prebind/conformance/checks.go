// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"regexp"
	"strings"
)

// Names of PreBind plugins that checks use.
const (
	checkBind     = "bind"
	nodeState     = "node-state"
	device        = "device"
	volumeBinding = "volumebinding"
)

// check tests one rule of the contract.
type check struct {
	name string
	// rule is the rule in a few words.
	rule string
	// section is the anchor of the rule in docs/for-schedulers.md.
	section string
	// plugins are the PreBind plugins that the check needs, and nodes the number of nodes.
	plugins []string
	nodes   int
	// needs are permissions in addition to those of every run.
	needs []permission
	// alone runs the check after the others.
	alone bool
	run   func(s *session, ctx context.Context) (string, error)
}

// checks returns all checks in the order of the report.
func checks() []check {
	return []check{
		{name: checkBind, rule: "Bind a pod to the node that it requires.", section: "answers", run: (*session).checkBind},
		{name: "annotations", rule: "Keep the annotations that Prebind adds.", section: "request-devices-plugins-and-a-budget", run: (*session).checkAnnotations},
		{name: "binding-annotations", rule: "Repeat a Binding with the same annotations.", section: "repeat-a-binding", run: (*session).checkBindingAnnotations},
		{name: "uid", rule: "Set the UID of the pod in the Binding.", section: "set-the-uid", needs: policyPermissions(), run: (*session).checkUID},
		{name: "wait", rule: "Repeat a Binding that has to wait (429).", section: "answers", plugins: []string{nodeState}, run: (*session).checkWait},
		{name: "refused", rule: "Try again after a refusal (403), with backoff.", section: "answers", plugins: []string{device}, nodes: 2, run: (*session).checkRefused},
		{name: "invalid", rule: "Do not repeat an invalid Binding (422) in a loop.", section: "answers", run: (*session).checkInvalid},
		{name: "stale", rule: "Drop the bind of a deleted pod.", section: "set-the-uid", plugins: []string{nodeState}, run: (*session).checkStale},
		{name: "volume", rule: "Keep the node while volumes are prepared.", section: "repeat-a-binding", plugins: []string{volumeBinding}, needs: volumePermissions(), run: (*session).checkVolume},
		{name: "rollback", rule: "Release everything when a waiting pod is deleted.", section: "repeat-a-binding", plugins: []string{device, volumeBinding}, needs: volumePermissions(), run: (*session).checkRollback},
		{name: "workers", rule: "Bind other pods while some wait.", section: "few-bind-workers", plugins: []string{nodeState}, alone: true, run: (*session).checkWorkers},
		{name: "burst", rule: "Bind many pods, each once.", section: "time-limits", alone: true, run: (*session).checkBurst},
	}
}

// Describe returns one line for each check, with its name and its rule.
func Describe() string {
	var lines strings.Builder
	for _, c := range checks() {
		fmt.Fprintf(&lines, "  %-21s %s\n", c.name, c.rule)
	}
	return lines.String()
}

// choose returns the checks of a run: the first check, and those that the expression matches. It returns an error if the
// expression matches no check.
func choose(names *regexp.Regexp) ([]check, error) {
	var chosen []check
	var all []string
	matches := false
	for _, c := range checks() {
		all = append(all, c.name)
		match := names == nil || names.MatchString(c.name)
		matches = matches || match
		if match || c.name == checkBind {
			chosen = append(chosen, c)
		}
	}
	if !matches {
		return nil, fmt.Errorf("--run: no check matches %q; the checks are %s", names, strings.Join(all, ", "))
	}
	return chosen, nil
}
