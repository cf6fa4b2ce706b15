// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package certificates brings the webhook the certificate that it serves, and the
// CA of those who may call it, from files that are followed while they change.
// Its package selfmanaged makes certificates by itself.
package certificates
