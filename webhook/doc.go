// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package webhook is the HTTP interface of Prebind. It converts AdmissionReviews of Bindings to requests to the engine. It
// converts decisions of the engine to statuses, patches, warnings and audit annotations.
package webhook

// Path is the URL path of the webhook.
const Path = "/mutate-pods-binding"
