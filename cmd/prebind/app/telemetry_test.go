// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestTracingFlags(t *testing.T) {
	cases := map[string]struct {
		reason string
		o      tracingOptions
		says   string
	}{
		"Off":         {reason: "no spans by default"},
		"On":          {reason: "only what the API server traces", o: tracingOptions{endpoint: "localhost:4317"}},
		"All":         {reason: "every bind", o: tracingOptions{endpoint: "localhost:4317", rate: 1_000_000}},
		"NoPort":      {reason: "it would be sent nowhere", o: tracingOptions{endpoint: "localhost"}, says: "--tracing-endpoint: "},
		"URL":         {reason: "gRPC takes no URL", o: tracingOptions{endpoint: "http://localhost:4317"}, says: "--tracing-endpoint: "},
		"TooMuch":     {reason: "there are no more than all", o: tracingOptions{endpoint: "localhost:4317", rate: 1_000_001}, says: "--tracing-sampling-rate-per-million: "},
		"Negative":    {reason: "nor less than none", o: tracingOptions{endpoint: "localhost:4317", rate: -1}, says: "--tracing-sampling-rate-per-million: "},
		"RateForNone": {reason: "the endpoint was forgotten", o: tracingOptions{rate: 1}, says: "--tracing-endpoint"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			err := oneLine(tc.o.problems())
			if tc.says == "" {
				assert.NoError(t, err, tc.reason)
				return
			}
			assert.ErrorContains(t, err, tc.says, tc.reason)
		})
	}
}
