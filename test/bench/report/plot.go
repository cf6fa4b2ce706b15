// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"slices"

	"github.com/prebind/prebind/test/bench/stat"
)

const (
	wide   = 860
	labels = 570 // left edge of the plot
	margin = 30
	tall   = 26 // height of a strip
)

// Colors that people with color vision deficiency can distinguish.
const (
	ours   = "#0072b2"
	theirs = "#d55e00"
	grey   = "#888888"
	ink    = "#222222"
)

// canvas builds an SVG.
type canvas struct{ bytes.Buffer }

func newCanvas(height int) *canvas {
	c := &canvas{}
	fmt.Fprintf(c, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", wide, height, wide, height)
	fmt.Fprintf(c, `<rect width="%d" height="%d" fill="white"/>`+"\n", wide, height)
	return c
}

func (c *canvas) text(x, y float64, anchor, color, text string) {
	fmt.Fprintf(c, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s">`, x, y, anchor, color)
	_ = xml.EscapeText(c, []byte(text)) // It writes to memory.
	fmt.Fprintln(c, "</text>")
}

func (c *canvas) line(x1, y1, x2, y2 float64, color string, width float64) {
	fmt.Fprintf(c, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="%g"/>`+"\n", x1, y1, x2, y2, color, width)
}

func (c *canvas) dot(x, y, radius float64, color string) {
	fmt.Fprintf(c, `<circle cx="%.1f" cy="%.1f" r="%g" fill="%s" fill-opacity="0.5"/>`+"\n", x, y, radius, color)
}

func (c *canvas) close() []byte {
	fmt.Fprintln(c, "</svg>")
	return c.Bytes()
}

// axis maps values to coordinates.
type axis struct{ low, high, from, to float64 }

func (a axis) at(v float64) float64 {
	v = min(max(v, a.low), a.high)
	return a.from + (v-a.low)/(a.high-a.low)*(a.to-a.from)
}

// ticks returns about five round numbers.
func (a axis) ticks() []float64 {
	raw := (a.high - a.low) / 5
	power := math.Pow(10, math.Floor(math.Log10(raw)))
	step := 10 * power
	for _, by := range []float64{5, 2, 1} {
		if power*by >= raw {
			step = power * by
		}
	}
	var all []float64
	for v := math.Ceil(a.low/step) * step; v <= a.high+step/1000; v += step {
		all = append(all, math.Round(v/step)*step)
	}
	return all
}

// grid draws the axis along the bottom.
func (c *canvas) grid(x axis, top, bottom float64, unit string) {
	for _, v := range x.ticks() {
		c.line(x.at(v), top, x.at(v), bottom, "#e0e0e0", 1)
		c.text(x.at(v), bottom+16, "middle", ink, fmt.Sprintf("%.6g%s", v, unit))
	}
}

// strip draws one line: a dot per value and a bar for the median.
func (c *canvas) strip(x axis, y float64, values []float64, color string) {
	for _, v := range values {
		c.dot(x.at(v), y, 3.5, color)
	}
	m := x.at(stat.Median(values))
	c.line(m, y-8, m, y+8, color, 3)
}

// ratiosPlot shows each round of each ratio with a target.
func ratiosPlot(results []result) []byte {
	results = slices.DeleteFunc(slices.Clone(results), func(r result) bool { return !r.plotted })
	const top, most = 40, 2.0
	bottom := float64(top + tall*len(results))
	c := newCanvas(int(bottom) + 50)
	x := axis{low: 0, high: most, from: labels, to: wide - margin}
	c.text(margin, 22, "start", ink, "Ratios: a dot per round, a bar for the median, the target in orange; values above 2 are at the edge")
	c.grid(x, top, bottom, "×")
	c.line(x.at(1), top, x.at(1), bottom, grey, 1.5)
	for i, r := range results {
		y := float64(top + tall*i + tall/2)
		c.text(labels-10, y+4, "end", ink, fmt.Sprintf("%d  %s", r.number, r.what))
		c.strip(x, y, r.values, ours)
		for _, target := range []*float64{r.most, r.least} {
			if target != nil {
				c.line(x.at(*target), y-tall/2+2, x.at(*target), y+tall/2-2, theirs, 2)
			}
		}
	}
	return c.close()
}

// claimsPlot shows the delay of each claim.
func claimsPlot(samples []stat.Sample) []byte {
	c := newCanvas(150)
	x := axis{low: 0, high: 1200, from: 200, to: wide - margin}
	c.text(margin, 22, "start", ink, "Delay from claim bound to pod bound: a dot per claim, a bar for the median")
	c.grid(x, 40, 110, " ms")
	for i, who := range []string{"kube-scheduler", prebind} {
		y := float64(60 + 30*i)
		c.text(190, y+4, "end", ink, who)
		c.strip(x, y, stat.Values(samples, "ms", who), []string{theirs, ours}[i])
	}
	return c.close()
}

// memoryPlot shows the memory by the number of running pods, which is the round of a sample.
func memoryPlot(samples []stat.Sample) []byte {
	const metric, top, bottom, left = "resident MiB", 40.0, 300.0, 80.0
	c := newCanvas(350)
	var xs, ys []float64
	for _, s := range samples {
		if s.Metric == metric {
			xs, ys = append(xs, float64(s.Round)), append(ys, s.Value)
		}
	}
	x := axis{high: max(1, stat.Quantile(xs, 1)), from: left, to: wide - 200}
	y := axis{high: 1.1 * max(1, stat.Quantile(ys, 1)), from: bottom, to: top}
	c.text(margin, 22, "start", ink, "Resident memory (MiB) by running pods")
	c.grid(x, top, bottom, "")
	for _, v := range y.ticks() {
		c.line(left, y.at(v), wide-200, y.at(v), "#e0e0e0", 1)
		c.text(left-8, y.at(v)+4, "end", ink, fmt.Sprintf("%.6g", v))
	}
	for i, who := range []string{informer, prebind} {
		color := []string{theirs, ours}[i]
		var lastX, lastY float64
		for n, v := range stat.Values(samples, metric, who) {
			atX, atY := x.at(steps(samples, metric, who)[n]), y.at(v)
			if n > 0 {
				c.line(lastX, lastY, atX, atY, color, 2)
			}
			c.dot(atX, atY, 4, color)
			lastX, lastY = atX, atY
		}
		c.text(lastX+10, lastY+4, "start", color, []string{"informer of all pods", "Prebind"}[i])
	}
	return c.close()
}

// steps returns the rounds of a variant, in ascending order.
func steps(samples []stat.Sample, metric, variant string) []float64 {
	var all []float64
	for _, s := range samples {
		if s.Metric == metric && s.Variant == variant {
			all = append(all, float64(s.Round))
		}
	}
	slices.Sort(all)
	return all
}
