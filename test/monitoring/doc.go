// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package monitoring holds config/webhook/monitoring to what it promises: every
// alert fires when it should, and only then, on Prometheus' own engine, and every
// query asks for metrics and labels that docs/metrics.md has.
package monitoring
