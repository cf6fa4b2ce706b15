// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed"
	"fmt"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

//go:embed rules.yaml
var ruleData []byte

// rule rejects a phrase. rules.yaml documents its fields.
type rule struct {
	Match  string `json:"match"`
	Except string `json:"except"`
	Write  string `json:"write"`
	Bad    string `json:"bad"`
	Good   string `json:"good"`

	match, except *regexp.Regexp
}

// violation is a phrase of a text that a rule rejects.
type violation struct {
	line  int
	found string
	rule  rule
}

// loadRules parses rules.yaml and compiles its expressions.
func loadRules(data []byte) ([]rule, error) {
	var file struct {
		Rules []rule `json:"rules"`
	}
	if err := yaml.UnmarshalStrict(data, &file); err != nil {
		return nil, fmt.Errorf("rules.yaml: %w", err)
	}
	for i := range file.Rules {
		r := &file.Rules[i]
		for _, e := range []struct {
			pattern string
			to      **regexp.Regexp
		}{{r.Match, &r.match}, {r.Except, &r.except}} {
			if e.pattern == "" {
				continue
			}
			compiled, err := regexp.Compile("(?i)" + e.pattern)
			if err != nil {
				return nil, fmt.Errorf("rules.yaml: %w", err)
			}
			*e.to = compiled
		}
	}
	return file.Rules, nil
}

// check returns the phrases of text that the rules reject, rule by rule.
func check(text text, rules []rule) []violation {
	joined, lineAt := text.join()
	var all []violation
	for _, r := range rules {
		for _, at := range r.match.FindAllStringIndex(joined, -1) {
			found := joined[at[0]:at[1]]
			if r.except != nil && r.except.MatchString(found) {
				continue
			}
			start := at[0] + len(found) - len(strings.TrimLeft(found, " .,;:"))
			all = append(all, violation{line: lineAt(start), found: strings.TrimSpace(found), rule: r})
		}
	}
	return all
}
