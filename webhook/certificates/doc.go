// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package certificates provides the serving certificate of the webhook and the CAs of its callers.
// Both come from files and are reloaded when the files change. Package selfmanaged creates the serving
// certificate without files.
package certificates
