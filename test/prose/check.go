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

// violation is a phrase that a rule rejects.
type violation struct {
	// line is that of the first word of the paragraph.
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

// check returns the phrases that the rules reject.
func check(texts []paragraph, rules []rule) []violation {
	var all []violation
	for _, p := range texts {
		for _, r := range rules {
			for _, found := range r.match.FindAllString(p.text, -1) {
				if r.except == nil || !r.except.MatchString(found) {
					all = append(all, violation{line: p.line, found: strings.TrimSpace(found), rule: r})
				}
			}
		}
	}
	return all
}
