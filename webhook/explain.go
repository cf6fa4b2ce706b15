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
	"github.com/prebind/prebind/config/v1alpha1"
)

// ExplainAnnotation on a dry-run Binding, with any value, requests an explanation. The answer contains it as a warning; see
// DecodeExplanation.
const ExplainAnnotation = framework.Binder + "." + v1alpha1.Domain + "/explain"

const (
	// explanationPrefix is the prefix of a warning that is an explanation.
	explanationPrefix = "prebind: explanation "
	// maxExplanation is the maximum size of an uncompressed explanation, in bytes. Other programs can send warnings too.
	maxExplanation = 4 << 20
)

// encodeExplanation returns the explanation as a warning. The API server passes on 4,096 runes, so the explanation is
// compressed. If it is still too long, parts are omitted.
func encodeExplanation(x binder.Explanation) (string, error) {
	for step, reduce := range []func(*binder.Explanation){
		func(*binder.Explanation) {},
		func(x *binder.Explanation) { x.Annotations, x.Labels, x.Warnings = nil, nil, nil },
		withoutFindings,
		func(x *binder.Explanation) { x.Plugins = nil },
	} {
		reduce(&x)
		x.Incomplete = step > 0
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

func withoutFindings(x *binder.Explanation) {
	x.Plugins = slices.Clone(x.Plugins)
	for i := range x.Plugins {
		x.Plugins[i].Findings = nil
	}
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

// DecodeExplanation returns the explanation that a warning contains, or nil for other warnings.
func DecodeExplanation(warning string) (*binder.Explanation, error) {
	text, ok := strings.CutPrefix(warning, explanationPrefix)
	if !ok {
		return nil, nil
	}
	var x binder.Explanation
	plain := flate.NewReader(base64.NewDecoder(base64.RawURLEncoding, strings.NewReader(text)))
	if err := json.NewDecoder(io.LimitReader(plain, maxExplanation)).Decode(&x); err != nil {
		return nil, fmt.Errorf("decoding the explanation: %w", err)
	}
	return &x, nil
}
