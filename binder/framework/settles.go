// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import "time"

// BindSettles is the maximum time after which an allowed bind takes effect. If a live read then
// shows that the pod is pending, the call did not bind it.
//
//	 34 s  the API server ends every request by then. The request began before
//	       Prebind was called.
//	+ 7 s  etcd can work on a write for this long, even after its client has disconnected:
//	       5 s and twice the election timeout, which is 1 s by default.
//	+ 9 s  margin for the network, and for a follower that forwards the write to the
//	       leader.
//
// A larger election timeout of etcd reduces the margin, to nothing at 5.5 s. The live read
// includes a write that the leader of etcd has logged and not yet committed, because etcd
// responds after that write.
const BindSettles = 50 * time.Second
