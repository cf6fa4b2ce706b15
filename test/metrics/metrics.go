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
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/plugins/policy"
	"github.com/prebind/prebind/binder/plugins/startlimit"
	"github.com/prebind/prebind/internal/certificates"
	"github.com/prebind/prebind/internal/telemetry"
)

const (
	counter   = "counter"
	gauge     = "gauge"
	histogram = "histogram"
)

// Metric is one that the program shows.
type Metric struct {
	Name string
	// Type is counter, gauge or histogram.
	Type string
	Help string
	// Labels in the order in which they were declared.
	Labels []string
}

// Series are the names under which a query finds the metric.
func (m Metric) Series() []string {
	if m.Type == histogram {
		return []string{m.Name + "_bucket", m.Name + "_sum", m.Name + "_count"}
	}
	return []string{m.Name}
}

// All returns the metrics by name; the caller owns the slice.
func All() ([]Metric, error) {
	r := &register{}
	if err := registerAll(r); err != nil {
		return nil, err
	}
	slices.SortFunc(r.found, func(a, b Metric) int { return cmp.Compare(a.Name, b.Name) })
	// A metric can have several collectors, with different values of a label.
	all := slices.CompactFunc(r.found, func(a, b Metric) bool { return a.Name == b.Name })
	return all, errors.Join(r.problems...)
}

func registerAll(r *register) error {
	r.MustRegister(certificates.NewMetrics().Collectors()...)
	recorder, err := telemetry.New(telemetry.Options{
		Registry: r, Clock: clock.RealClock{}, Plugins: []framework.Registration{startlimit.Registration(), policy.Registration()},
	})
	if err != nil {
		return err
	}
	recorder.Show(func() binder.Stats { return binder.Stats{} }, func() error { return nil })
	return nil
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
			m.Type, err = typeOf(c, m.Name)
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

// A Desc has its content only as text.
var (
	described = regexp.MustCompile(`^Desc\{fqName: "([^"]*)", help: "(.*)", unit: "[^"]*", constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)
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
func typeOf(c prometheus.Collector, name string) (string, error) {
	switch c.(type) {
	case *prometheus.CounterVec:
		return counter, nil
	case *prometheus.GaugeVec:
		return gauge, nil
	case *prometheus.HistogramVec:
		return histogram, nil
	}
	registry := prometheus.NewRegistry()
	if err := registry.Register(c); err != nil {
		return "", err
	}
	families, err := registry.Gather()
	if err != nil {
		return "", err
	}
	for _, f := range families {
		if f.GetName() == name {
			return strings.ToLower(f.GetType().String()), nil
		}
	}
	return "", fmt.Errorf("the collector of %s collects nothing, so its type is unknown", name)
}
