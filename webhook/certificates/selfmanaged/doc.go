// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package selfmanaged makes the webhook's certificates without anybody's help: a
// CA in a Secret that all replicas share, and under it a certificate for each
// replica, which never leaves its memory.
//
// All replicas do the same, and whichever is first does it for all. What is to be
// done next is a pure function of the Secret, of what the webhook configuration
// trusts, and of the time; see lives.next. A CA is changed in steps, so that at no
// moment a replica serves what an API server does not trust:
//
//	create ─▶ inject ─▶ serve ─▶ add the next CA ─▶ inject ─▶ wait ─▶ promote it
//	                      ▲                                            │
//	                      ╰── inject ◀── drop the old CA ◀── wait ◀────╯
package selfmanaged
