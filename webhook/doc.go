// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package webhook is the HTTP edge: it turns AdmissionReviews of Bindings into
// requests to the engine, and the engine's decisions into status, patch,
// warnings and audit annotations. It decides nothing by itself.
package webhook

// Path is where the API server sends its reviews.
const Path = "/mutate-pods-binding"
