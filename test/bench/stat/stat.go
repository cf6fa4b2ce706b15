// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package stat stores samples of rounds, in which several variants take turns, and computes ratios of two variants in the same
// round. Ratios depend far less on the machine than absolute values.
package stat

import (
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
)

// Sample is one value of one variant in one round.
type Sample struct {
	Variant string
	Round   int
	Metric  string
	Value   float64
}

func header() []string { return []string{"variant", "round", "metric", "value"} }

// Write writes the samples as CSV.
func Write(w io.Writer, samples []Sample) error {
	out := csv.NewWriter(w)
	records := [][]string{header()}
	for _, s := range samples {
		records = append(records, []string{s.Variant, strconv.Itoa(s.Round), s.Metric, strconv.FormatFloat(s.Value, 'g', 6, 64)})
	}
	return out.WriteAll(records)
}

// Read reads the format of Write.
func Read(r io.Reader) ([]Sample, error) {
	in := csv.NewReader(r)
	in.FieldsPerRecord = len(header())
	records, err := in.ReadAll()
	if err != nil {
		return nil, err
	}
	if len(records) == 0 || !slices.Equal(records[0], header()) {
		return nil, fmt.Errorf("invalid header: must be %v", header())
	}
	var samples []Sample
	for _, record := range records[1:] {
		s := Sample{Variant: record[0], Metric: record[2]}
		if s.Round, err = strconv.Atoi(record[1]); err != nil {
			return nil, fmt.Errorf("round: %w", err)
		}
		if s.Value, err = strconv.ParseFloat(record[3], 64); err != nil {
			return nil, fmt.Errorf("value: %w", err)
		}
		samples = append(samples, s)
	}
	return samples, nil
}

// Values returns the values of the variant in the order of rounds.
func Values(samples []Sample, metric, variant string) []float64 {
	byRound := rounds(samples, metric, variant)
	values := make([]float64, 0, len(byRound))
	for _, round := range slices.Sorted(maps.Keys(byRound)) {
		values = append(values, byRound[round])
	}
	return values
}

// Ratios returns the ratios of two variants in the order of rounds. It omits rounds without both values, and rounds in which
// the value of against is 0.
func Ratios(samples []Sample, metric, variant, against string) []float64 {
	those, these := rounds(samples, metric, against), rounds(samples, metric, variant)
	var ratios []float64
	for _, round := range slices.Sorted(maps.Keys(these)) {
		if those[round] != 0 {
			ratios = append(ratios, these[round]/those[round])
		}
	}
	return ratios
}

func rounds(samples []Sample, metric, variant string) map[int]float64 {
	values := map[int]float64{}
	for _, s := range samples {
		if s.Variant == variant && s.Metric == metric {
			values[s.Round] = s.Value
		}
	}
	return values
}

// Quantile interpolates linearly. Without values it returns 0.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	low := int(at)
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (at-float64(low))*(sorted[high]-sorted[low])
}

// Median returns the 0.5 quantile.
func Median(values []float64) float64 { return Quantile(values, 0.5) }

// Mean returns the arithmetic mean, or 0 without values.
func Mean(values []float64) float64 {
	total := 0.0
	for _, v := range values {
		total += v
	}
	return total / max(float64(len(values)), 1)
}
