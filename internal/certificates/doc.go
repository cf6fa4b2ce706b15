// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package certificates provides the serving certificate of the webhook and the CAs of its callers. It reads both from files and
// reloads changed files, or creates the serving certificate itself.
//
// All replicas share a self-managed CA in a Secret. Each replica has its own serving certificate, which never leaves its memory.
//
// All replicas run the same steps, and the first one to write takes effect. The next step is a pure function of the Secret,
// of the CAs in the webhook configuration, and of the time; see Options.next. No replica ever serves a certificate that an API server does not
// trust: after a new CA is created, the old one stays trusted, and a replica keeps it in memory and signs with it for a while.
//
//	create a CA ─▶ inject both ─▶ wait ─▶ serve ─▶ wait ─▶ drop the old CA ─▶ inject
package certificates
