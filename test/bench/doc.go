// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bench measures what Prebind costs and saves on a real control plane,
// beside what kube-scheduler does by itself, in the same run:
//
//	make bench
package bench
