// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command report creates tables and plots of benchmark results:
//
//	report DATA [README]
//
// DATA is the directory with the samples. Without README, report prints the tables. With README, it replaces the tables
// between the markers in that file, and writes the plots to the same directory.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/prebind/prebind/test/bench/stat"
)

// Markers of the table in the README.
const (
	begin = "<!-- results -->\n"
	end   = "<!-- end of results -->\n"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 || len(args) > 2 {
		return errors.New("usage: report DATA [README]")
	}
	data, err := read(args[0])
	if err != nil {
		return err
	}
	results := resultsOf(data)
	growth := growthMarkdown(grownOf(data))
	if len(args) == 1 {
		fmt.Print(markdown(results), "\n", growth)
		return nil
	}
	readme, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	text, err := replace(string(readme), begin, end, markdown(results))
	if err == nil {
		text, err = replace(text, beginGrowth, endGrowth, growth)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", args[1], err)
	}
	dir := filepath.Dir(args[1])
	return errors.Join(
		os.WriteFile(args[1], []byte(text), 0o644),
		os.WriteFile(filepath.Join(dir, "ratios.svg"), ratiosPlot(results), 0o644),
		os.WriteFile(filepath.Join(dir, "memory.svg"), memoryPlot(data["scale"]), 0o644),
		os.WriteFile(filepath.Join(dir, "claims.svg"), claimsPlot(data["claims"]), 0o644),
	)
}

// read returns the samples by file name. Files that do not exist are omitted.
func read(dir string) (map[string][]stat.Sample, error) {
	data := map[string][]stat.Sample{}
	files, err := filepath.Glob(filepath.Join(dir, "*.csv"))
	if err != nil {
		return nil, err
	}
	for _, path := range files {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		samples, err := stat.Read(file)
		_ = file.Close() // Read-only.
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		data[strings.TrimSuffix(filepath.Base(path), ".csv")] = samples
	}
	text, err := os.ReadFile(filepath.Join(dir, "admission.txt"))
	if err == nil {
		data["admission"] = admission(string(text))
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return data, nil
}

// admission parses lines such as
//
//	BenchmarkAdmission/webhook=prebind-2  20000  30000 ns/op  9000 B/op  110 allocs/op
//
// The n-th line of a webhook is its n-th round.
func admission(text string) []stat.Sample {
	var samples []stat.Sample
	rounds := map[string]int{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "BenchmarkAdmission/webhook=") {
			continue
		}
		_, webhook, _ := strings.Cut(fields[0], "=")
		if i := strings.LastIndex(webhook, "-"); i >= 0 { // GOMAXPROCS
			if _, err := strconv.Atoi(webhook[i+1:]); err == nil {
				webhook = webhook[:i]
			}
		}
		for i := 2; i+1 < len(fields); i += 2 {
			if value, err := strconv.ParseFloat(fields[i], 64); err == nil {
				samples = append(samples, stat.Sample{Variant: webhook, Round: rounds[webhook], Metric: fields[i+1], Value: value})
			}
		}
		rounds[webhook]++
	}
	return samples
}

func resultsOf(data map[string][]stat.Sample) []result {
	var results []result
	for _, r := range table() {
		if found, ok := r.result(data[r.file]); ok {
			results = append(results, found)
		}
	}
	return results
}

func markdown(results []result) string {
	var out bytes.Buffer
	fmt.Fprintln(&out, "| # | Measurement | Target | Result | Interquartile range | Rounds | Met |")
	fmt.Fprintln(&out, "|---|---|---|---|---|---:|---|")
	for _, r := range results {
		fmt.Fprintln(&out, r.line())
	}
	return out.String()
}

// replace returns the text with a new table between the markers.
func replace(text, begin, end, table string) (string, error) {
	before, rest, ok := strings.Cut(text, begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return "", fmt.Errorf("markers of the table not found: add %q and %q", strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return before + begin + table + end + after, nil
}
