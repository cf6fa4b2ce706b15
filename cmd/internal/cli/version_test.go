// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestDocumentation(t *testing.T) {
	cases := map[string]struct{ reason, ref string }{
		"v1.2.3":                             {reason: "a release", ref: "v1.2.3"},
		"v1.2.3-rc.1":                        {reason: "a release candidate has a tag too", ref: "v1.2.3-rc.1"},
		"v1.2.3-4-g35425f0":                  {reason: "git describe after a tag", ref: "main"},
		"v1.2.3-dirty":                       {reason: "git describe with changes", ref: "main"},
		"35425f0":                            {reason: "git describe without a tag", ref: "main"},
		"v1.2.4-0.20260101000000-35425f0aaa": {reason: "a pseudo-version of go install", ref: "main"},
		"":                                   {reason: "go build without flags", ref: "main"},
	}
	for text, tc := range cases {
		t.Run(text, func(t *testing.T) {
			before := version
			t.Cleanup(func() { version = before })
			version = text
			assert.Equal(t, "https://github.com/prebind/prebind/blob/"+tc.ref+"/docs/policies.md", Documentation("policies.md"), tc.reason)
		})
	}
}
