// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package certificates provides the serving certificate of the webhook and the CAs of its callers. It reads both from files and
// reloads changed files, or creates the serving certificate itself.
//
// All replicas share a self-managed CA in a Secret. Each replica has its own serving certificate, which never leaves its memory.
//
// All replicas run the same steps, and the first one to write takes effect. The next step is a pure function of the Secret,
// of the CAs in the webhook configuration, and of the time; see lives.next. A rotation has several steps, so that
// no replica ever serves a certificate that an API server does not trust:
//
//	create ─▶ inject ─▶ serve ─▶ add the next CA ─▶ inject ─▶ wait ─▶ promote it
//	                      ▲                                            │
//	                      ╰── inject ◀── drop the old CA ◀── wait ◀────╯
package certificates
