// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bench measures the cost of Prebind on a real control plane, and compares it with other webhooks and with
// kube-scheduler in the same run:
//
//	make bench
//	make scale
//
// docs/performance shows the results.
package bench
