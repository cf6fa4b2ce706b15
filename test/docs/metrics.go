// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed"
	"fmt"
	"io"
	"strings"

	"github.com/prebind/prebind/test/metrics"
)

// metricsIntro is written by hand.
//
//go:embed metrics.intro.txt
var metricsIntro string

func writeMetrics(to io.Writer) error {
	all, err := metrics.All()
	if err != nil {
		return err
	}
	fmt.Fprint(to, metricsIntro)
	fmt.Fprint(to, "\n## All metrics\n\nEach metric with its type and labels:\n\n")
	for _, m := range all {
		labels := ""
		if len(m.Labels) > 0 {
			labels = "; `" + strings.Join(m.Labels, "`, `") + "`"
		}
		fmt.Fprintf(to, "- `%s` (%s%s): %s\n", m.Name, m.Type, labels, m.Help)
	}
	return nil
}
