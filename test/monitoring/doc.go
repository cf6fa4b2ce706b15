// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package monitoring holds config/webhook/monitoring to what it promises: every
// alert fires when it should, and only then, on Prometheus' own engine, and every
// query asks for labels that the metrics have. That the metrics exist is checked in
// test/manifests.
package monitoring
