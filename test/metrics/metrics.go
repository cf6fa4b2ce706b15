// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package metrics describes every metric that the program registers, for the
// documents and for tests that hold alerts and dashboards to it.
package metrics

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/prebind/prebind/cmd/prebind/app"
)

// Metric is one that the program shows.
type Metric struct {
	Name string
	Type dto.MetricType
	Help string
	// Labels in the order in which they were declared.
	Labels []string
}

// Series are the names under which a query finds the metric.
func (m Metric) Series() []string {
	if m.Type == dto.MetricType_HISTOGRAM {
		return []string{m.Name + "_bucket", m.Name + "_sum", m.Name + "_count"}
	}
	return []string{m.Name}
}

// All returns the metrics by name; the caller owns the slice.
func All() ([]Metric, error) {
	r := &register{}
	if err := app.RegisterMetrics(r); err != nil {
		return nil, err
	}
	slices.SortFunc(r.found, func(a, b Metric) int { return cmp.Compare(a.Name, b.Name) })
	return r.found, errors.Join(r.problems...)
}

// register is a Registerer that writes down what it is given.
type register struct {
	found    []Metric
	problems []error
}

// Register implements prometheus.Registerer.
func (r *register) Register(c prometheus.Collector) error {
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		c.Describe(descs)
	}()
	for desc := range descs {
		m, err := parse(desc)
		if err == nil {
			m.Type, err = typeOf(c, desc)
		}
		if err != nil {
			r.problems = append(r.problems, err)
			continue
		}
		r.found = append(r.found, m)
	}
	return nil
}

// MustRegister implements prometheus.Registerer.
func (r *register) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		_ = r.Register(c) // It returns nil.
	}
}

// Unregister implements prometheus.Registerer.
func (r *register) Unregister(prometheus.Collector) bool { return false }

// A Desc tells what it is as text only.
var (
	described = regexp.MustCompile(`^Desc\{fqName: "([^"]*)", help: "(.*)", constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)
	constant  = regexp.MustCompile(`(\w+)="`)
)

func parse(desc *prometheus.Desc) (Metric, error) {
	parts := described.FindStringSubmatch(desc.String())
	if parts == nil {
		return Metric{}, fmt.Errorf("not the description of a metric: %s", desc)
	}
	m := Metric{Name: parts[1], Help: strings.ReplaceAll(parts[2], `\"`, `"`)}
	for _, label := range constant.FindAllStringSubmatch(parts[3], -1) {
		m.Labels = append(m.Labels, label[1])
	}
	for label := range strings.SplitSeq(parts[4], ",") {
		if label != "" {
			m.Labels = append(m.Labels, label)
		}
	}
	return m, nil
}

// typeOf goes by what a collector is, or else by what it collects.
func typeOf(c prometheus.Collector, desc *prometheus.Desc) (dto.MetricType, error) {
	switch c.(type) {
	case *prometheus.CounterVec:
		return dto.MetricType_COUNTER, nil
	case *prometheus.GaugeVec:
		return dto.MetricType_GAUGE, nil
	case *prometheus.HistogramVec:
		return dto.MetricType_HISTOGRAM, nil
	}
	collected := make(chan prometheus.Metric)
	go func() {
		defer close(collected)
		c.Collect(collected)
	}()
	found, known := dto.MetricType_UNTYPED, false
	for metric := range collected {
		var value dto.Metric
		if metric.Desc() != desc || metric.Write(&value) != nil {
			continue
		}
		known = true
		switch {
		case value.Counter != nil:
			found = dto.MetricType_COUNTER
		case value.Gauge != nil:
			found = dto.MetricType_GAUGE
		case value.Histogram != nil:
			found = dto.MetricType_HISTOGRAM
		default:
			known = false
		}
	}
	if !known {
		return found, fmt.Errorf("a collector shows nothing of what it describes, so its type is not known: %s", desc)
	}
	return found, nil
}
