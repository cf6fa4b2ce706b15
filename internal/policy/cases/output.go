// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"fmt"
	"io"
	"strings"
)

// WriteText writes the failures of a directory, and a summary in one line.
func (r *Result) WriteText(out io.Writer) error {
	failed := 0
	for _, c := range r.Cases {
		if len(c.Failures) == 0 {
			continue
		}
		failed++
		fmt.Fprintf(out, "--- FAIL: %s (%s)\n%s\n", c.Name, c.File, indent(strings.Join(c.Failures, "\n")))
	}
	if r.Err != nil {
		fmt.Fprintln(out, r.Err)
	}
	var err error
	switch {
	case r.Err != nil:
		_, err = fmt.Fprintf(out, "FAIL  %s  %s, invalid\n", r.Dir, count(len(r.Cases)))
	case failed > 0:
		_, err = fmt.Fprintf(out, "FAIL  %s  %s, %d failed\n", r.Dir, count(len(r.Cases)), failed)
	default:
		_, err = fmt.Fprintf(out, "ok    %s  %s\n", r.Dir, count(len(r.Cases)))
	}
	return err
}

func count(cases int) string {
	if cases == 1 {
		return "1 case"
	}
	return fmt.Sprintf("%d cases", cases)
}

func indent(text string) string { return "    " + strings.ReplaceAll(text, "\n", "\n    ") }
