// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import "time"

// BindSettles is how long the outcome of a bind is open after Prebind allowed it. A
// pod that a live read shows pending after this time is not bound by that call.
//
//	 34 s  the API server ends every request by then. The request began before
//	       Prebind was called.
//	+ 7 s  etcd works on a write for this long, also after its client has gone:
//	       5 s and twice the election timeout, which is 1 s by default.
//	+ 9 s  margin: the way between the processes, and a follower that forwards the
//	       write to its leader.
//
// A larger election timeout of etcd takes from the margin: with more than 5.5 s
// nothing is left of it. A write that a leader of etcd has in its log by then, and
// commits later, is visible to the live read, which etcd answers after that write.
const BindSettles = 50 * time.Second
