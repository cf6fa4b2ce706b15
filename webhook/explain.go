// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
)

// ExplainAnnotation on a dry-run Binding, with any value, requests an explanation. The answer contains it as a warning; see
// DecodeExplanation.
const ExplainAnnotation = framework.Binder + "." + framework.Domain + "/explain"

const (
	// explanationPrefix is the prefix of a warning that is an explanation.
	explanationPrefix = "prebind: explanation "
	// shortened is the length, in bytes, of the values of annotations and of the messages of findings if an explanation is
	// too long for a warning.
	shortened = 60
	// maxFirst is the number of findings of a plugin if an explanation is much too long.
	maxFirst = 20
	// maxExplanation is the maximum size of an uncompressed explanation, in bytes. Other programs can send warnings too.
	maxExplanation = 4 << 20
)

// encodeExplanation returns the explanation as a warning. The API server passes on 4,096 runes, so the explanation is
// compressed. If it is still too long, values and messages of findings are shortened, and then omitted.
func encodeExplanation(x binder.Explanation) (string, error) {
	for _, smaller := range []func(*binder.Explanation){
		func(*binder.Explanation) {},
		func(x *binder.Explanation) { x.Annotations, x.Labels = shorten(x.Annotations), shorten(x.Labels) },
		func(x *binder.Explanation) { x.Plugins = withFindings(x.Plugins, shortenFindings) },
		func(x *binder.Explanation) { x.Plugins = withFindings(x.Plugins, firstFindings) },
		func(x *binder.Explanation) { x.Annotations, x.Labels, x.Warnings = nil, nil, nil },
		func(x *binder.Explanation) { x.Plugins = withFindings(x.Plugins, noFindings) },
		func(x *binder.Explanation) { x.Plugins = nil },
	} {
		before := x
		smaller(&x)
		x.Incomplete = x.Incomplete || len(before.Annotations) != len(x.Annotations) || len(before.Plugins) != len(x.Plugins) ||
			findings(before) != findings(x)
		text, err := compressed(x)
		if err != nil {
			return "", err
		}
		if len(text)+len(explanationPrefix) <= maxWarningRunes {
			return explanationPrefix + text, nil
		}
	}
	return "", errors.New("the explanation is too long for a warning")
}

func compressed(x binder.Explanation) (string, error) {
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, flate.BestCompression)
	if err == nil {
		err = json.NewEncoder(w).Encode(x)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return "", fmt.Errorf("encoding the explanation: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(out.Bytes()), nil
}

// shorten returns a copy of the map with shortened values.
func shorten(values map[string]string) map[string]string {
	short := make(map[string]string, len(values))
	for key, value := range values {
		short[key] = shortenValue(value)
	}
	return short
}

func shortenValue(value string) string {
	if len(value) <= shortened {
		return value
	}
	return strings.ToValidUTF8(value[:shortened], "") + "…"
}

// withFindings returns a copy of the plugins with other findings.
func withFindings(plugins []binder.PluginExplanation, change func([]framework.Finding) []framework.Finding) []binder.PluginExplanation {
	plugins = slices.Clone(plugins)
	for i := range plugins {
		plugins[i].Findings = change(plugins[i].Findings)
	}
	return plugins
}

func firstFindings(all []framework.Finding) []framework.Finding { return all[:min(len(all), maxFirst)] }

func noFindings([]framework.Finding) []framework.Finding { return nil }

// shortenFindings returns a copy of the findings with shortened messages.
func shortenFindings(all []framework.Finding) []framework.Finding {
	all = slices.Clone(all)
	for i := range all {
		all[i].Message = shortenValue(all[i].Message)
	}
	return all
}

// findings returns the number of findings.
func findings(x binder.Explanation) int {
	n := 0
	for _, p := range x.Plugins {
		n += len(p.Findings)
	}
	return n
}

// DecodeExplanation returns the explanation that a warning contains, or nil for other warnings.
func DecodeExplanation(warning string) (*binder.Explanation, error) {
	text, ok := strings.CutPrefix(warning, explanationPrefix)
	if !ok {
		return nil, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("decoding the explanation: %w", err)
	}
	var x binder.Explanation
	plain, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(raw)), maxExplanation))
	if err == nil {
		err = json.Unmarshal(plain, &x)
	}
	if err != nil {
		return nil, fmt.Errorf("decoding the explanation: %w", err)
	}
	return &x, nil
}
