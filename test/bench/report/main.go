// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command report creates tables of benchmark results:
//
//	report DATA [README]
//
// DATA is the directory with the samples, or has a directory for each day. Without README, report prints all results. With README, it
// replaces the lists between the markers in that file by the figures and the missed targets, and writes all results as CSV to the same
// directory. It also replaces the list in ../comparison.md.
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
var header = []string{"#", "Measurement", "Target", "Result", "Lowest and highest", "Rounds", "Each day", "Met"}

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
func written(readme string, data days, results []result) (map[string][]byte, error) {
	dir := filepath.Dir(readme)
	files := map[string][]byte{}
	for path, lists := range map[string]map[string]string{
		readme: {"figures": figures(data), "results": markdown(results)},
		filepath.Join(dir, "..", "comparison.md"): {"neighbors": neighbors(data.last("neighbors"))},
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

// samples are those of one day by file name. Files that do not exist are omitted.
type samples map[string][]stat.Sample

// days are samples in the order of days.
type days []samples

// last returns the samples of the last day that has the file.
func (d days) last(file string) []stat.Sample {
	for _, day := range slices.Backward(d) {
		if found := day[file]; len(found) > 0 {
			return found
		}
	}
	return nil
}

// read reads the directories of days in dir, or dir if it has none.
func read(dir string) (days, error) {
	dirs, err := filepath.Glob(filepath.Join(dir, "20*"))
	if err != nil {
		return nil, err
	}
	if len(dirs) == 0 {
		dirs = []string{dir}
	}
	var data days
	for _, dir := range dirs {
		day, err := readDay(dir)
		if err != nil {
			return nil, err
		}
		data = append(data, day)
	}
	return data, nil
}

func readDay(dir string) (samples, error) {
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

func resultsOf(data days) []result {
	var results []result
	for _, r := range table() {
		if found, ok := r.result(data); ok {
			results = append(results, found)
		}
	}
	return results
}

// markdown returns the number of results that meet their target and those that do not, and what differs between days.
func markdown(results []result) string {
	var missed, different strings.Builder
	targets, met, repeated, within, judged, same := 0, 0, 0, 0, 0, 0
	for _, r := range results {
		if r.repeated() {
			repeated++
			if r.repeatable() {
				within++
			}
			if verdicts := r.verdicts(); len(verdicts) == 1 && verdicts[0] != "" {
				judged, same = judged+1, same+1
			} else if len(verdicts) > 1 {
				judged++
				fmt.Fprintf(&different, "- %d %s: %s%s (%s)\n", r.number, r.what, r.eachDay(), r.unit, r.target())
			}
		}
		switch f := r.fields(); r.met() {
		case "yes":
			targets, met = targets+1, met+1
		case "no":
			targets++
			fmt.Fprintf(&missed, "- %s %s: %s (%s)\n", f[0], f[1], f[3], f[2])
		}
	}
	text := fmt.Sprintf("%d of %d targets are met. The others, with the number of their row:\n\n%s", met, targets, missed.String())
	if repeated > 0 {
		text += fmt.Sprintf("\n%d rows have several rounds on each of two days. In %d of them, the result of each day is within the range of the rounds of the\n"+
			"other. In %d of the %d with a target, both days meet it, or both miss it. The others:\n\n%s", repeated, within, same, judged, different.String())
	}
	return text
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
