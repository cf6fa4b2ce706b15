// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command report creates tables of benchmark results:
//
//	report DATA [README]
//
// DATA is the directory with the samples, or has a directory for each run, whose name begins with its day. Without README, report prints
// all results. With README, it replaces the lists between the markers in that file by the figures and the missed targets, and writes all
// results as CSV to the same directory. It also replaces the list in ../comparison.md.
package main

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/prebind/prebind/test/bench/stat"
)

// header is that of the columns of a result.
var header = []string{"#", "Measurement", "Target", "Result", "Lowest and highest", "Rounds", "Each run", "Met", "Repeatable"}

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
	if len(args) == 1 {
		fmt.Print(figures(data))
		for _, r := range results {
			fmt.Println("| " + strings.Join(r.fields(), " | ") + " |")
		}
		return nil
	}
	files, err := written(args[1], data, results)
	if err != nil {
		return err
	}
	for path, content := range files {
		err = errors.Join(err, os.WriteFile(path, content, 0o644))
	}
	return err
}

// written returns the files that report writes, by path.
func written(readme string, data []samples, results []result) (map[string][]byte, error) {
	dir := filepath.Dir(readme)
	files := map[string][]byte{}
	for path, lists := range map[string]map[string]string{
		readme: {"figures": figures(data), "results": markdown(results)},
		filepath.Join(dir, "..", "comparison.md"): {"neighbors": neighbors(last(data, "neighbors"))},
	} {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		text := string(content)
		for name, list := range lists {
			if text, err = replace(text, name, list); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
		}
		files[path] = []byte(text)
	}
	records := [][]string{header}
	for _, r := range results {
		records = append(records, r.fields())
	}
	var all bytes.Buffer
	err := csv.NewWriter(&all).WriteAll(records)
	files[filepath.Join(dir, "results.csv")] = all.Bytes()
	return files, err
}

// samples are those of one run by file name. Files that do not exist are omitted.
type samples map[string][]stat.Sample

// last returns the samples of the last run that has the file.
func last(data []samples, file string) []stat.Sample {
	for _, run := range slices.Backward(data) {
		if found := run[file]; len(found) > 0 {
			return found
		}
	}
	return nil
}

// read reads the directories of runs in dir, in order, or dir if it has none.
func read(dir string) ([]samples, error) {
	dirs, err := filepath.Glob(filepath.Join(dir, "20*"))
	if err != nil {
		return nil, err
	}
	if len(dirs) == 0 {
		dirs = []string{dir}
	}
	var data []samples
	for _, dir := range dirs {
		run, err := readRun(dir)
		if err != nil {
			return nil, err
		}
		data = append(data, run)
	}
	return data, nil
}

func readRun(dir string) (samples, error) {
	data := samples{}
	files, err := filepath.Glob(filepath.Join(dir, "*.csv"))
	if err != nil {
		return nil, err
	}
	for _, path := range files {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		found, err := stat.Read(file)
		_ = file.Close() // Read-only.
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		data[strings.TrimSuffix(filepath.Base(path), ".csv")] = found
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

func resultsOf(data []samples) []result {
	var results []result
	for _, r := range table() {
		if found, ok := r.result(data); ok {
			results = append(results, found)
		}
	}
	return results
}

// markdown returns the number of results that meet their target, those that any run missed, and how many rows repeat within the stated
// range.
func markdown(results []result) string {
	var missed, differ strings.Builder
	targets, met, repeated, within := 0, 0, 0, 0
	for _, r := range results {
		if verdict := r.judge(r.value); verdict != "" {
			targets++
			if verdict == "yes" {
				met++
			}
		}
		if slices.ContainsFunc(r.runs, func(value float64) bool { return r.judge(value) == "no" }) {
			fmt.Fprintf(&missed, "- %d %s: %s%s (%s)\n", r.number, r.what, r.eachRun(), r.unit, r.target())
		}
		switch r.repeatable() {
		case "yes":
			repeated, within = repeated+1, within+1
		case "no":
			repeated++
			fmt.Fprintf(&differ, "- %d %s: %s%s\n", r.number, r.what, r.eachRun(), r.unit)
		}
	}
	return fmt.Sprintf("%d of %d targets are met by the median of all rounds. At least one run missed these, with the number of their row:\n\n%s"+
		"\nExpect your ratios within a factor of %g of these results, and absolute values and p99 within %g. All runs of %d of %d rows were. The others:\n\n%s",
		met, targets, missed.String(), spreadOfRatios, spreadOfAbsolute, within, repeated, differ.String())
}

// replace returns the text with another list between the markers of the name.
func replace(text, name, list string) (string, error) {
	begin, end := "<!-- "+name+" -->\n", "<!-- end of "+name+" -->\n"
	before, rest, ok := strings.Cut(text, begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return "", fmt.Errorf("markers of the list not found: add %q and %q", strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return before + begin + list + end + after, nil
}
