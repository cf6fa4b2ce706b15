// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package certificates provides the serving certificate of the webhook and the CAs of its callers.
// It reads both from files and reloads changed files. Package selfmanaged creates the serving
// certificate without files.
package certificates
