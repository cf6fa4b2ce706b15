// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bench measures what Prebind costs and saves on a real control plane, beside
// what others do in the same run, in turns:
//
//	make bench
//	make scale
//
// docs/performance tells of the results.
package bench
