// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apijson "k8s.io/apimachinery/pkg/util/json"
)

const (
	// ordinaryBody is the maximum length of a body for which readReview allocates a buffer in advance. Most reviews have 2 KiB.
	ordinaryBody = 8 << 10
	// maxUID is larger than every UID of the API server. The answer repeats the UID.
	maxUID = 128
	// defaultTimeout is the API server's own default.
	defaultTimeout = 10 * time.Second
	// mediaType is the media type of reviews and answers.
	mediaType = "application/json"
	// margin is reserved for sending the answer. The API server rounds the timeout that it sends up to whole seconds, so
	// the margin cannot be shorter.
	margin = time.Second
)

var reviewKind = admissionv1.SchemeGroupVersion.WithKind("AdmissionReview")

func invalid(format string, args ...any) *metav1.Status {
	return failure(http.StatusBadRequest, metav1.StatusReasonBadRequest, fmt.Errorf(format, args...))
}

// readReview returns the request of the AdmissionReview in the body. It checks the method, content type, size, kind and UID.
func readReview(w http.ResponseWriter, r *http.Request) (*admissionv1.AdmissionRequest, *metav1.Status) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return nil, failure(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
			fmt.Errorf("method %s is not allowed: send an AdmissionReview with POST", r.Method))
	}
	if !isJSON(r.Header.Get("Content-Type")) {
		return nil, failure(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType,
			fmt.Errorf("content type %q is not supported: send application/json", r.Header.Get("Content-Type")))
	}
	if r.ContentLength > maxBody {
		return nil, tooLarge()
	}
	defer func() { _ = r.Body.Close() }() // Limits then no longer count its bytes.
	// The length is set by the caller.
	body := bytes.NewBuffer(make([]byte, 0, min(max(r.ContentLength, 0), ordinaryBody)+bytes.MinRead))
	_, err := body.ReadFrom(r.Body)
	limit := (*http.MaxBytesError)(nil)
	switch {
	case errors.As(err, &limit):
		return nil, tooLarge()
	case errors.Is(err, errOverloaded):
		return nil, unavailable(err)
	case err != nil:
		return nil, invalid("reading the body: %w", err)
	}
	return decode(body.Bytes())
}

func tooLarge() *metav1.Status {
	return failure(http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge, fmt.Errorf("the body is larger than %d bytes", maxBody))
}

func isJSON(contentType string) bool {
	kind, _, err := mime.ParseMediaType(contentType)
	return err == nil && kind == mediaType
}

// decode returns the request of an AdmissionReview of v1, without the parts that Prebind does not read: a held call would
// keep them.
func decode(body []byte) (*admissionv1.AdmissionRequest, *metav1.Status) {
	var review admissionv1.AdmissionReview
	if err := apijson.Unmarshal(body, &review); err != nil {
		return nil, invalid("the body is not a valid AdmissionReview: %w", err)
	}
	kind, request := review.GroupVersionKind(), review.Request
	switch {
	case kind != reviewKind:
		return nil, invalid("the body is a %q of %q, not an AdmissionReview of %s", kind.Kind, kind.GroupVersion(), reviewKind.GroupVersion())
	case request == nil:
		return nil, invalid("the AdmissionReview has no request")
	case request.UID == "":
		return nil, invalid("the request of the AdmissionReview has no uid")
	case len(request.UID) > maxUID:
		return nil, invalid("the uid of the AdmissionReview's request is longer than %d bytes", maxUID)
	}
	request.OldObject, request.Options = runtime.RawExtension{}, runtime.RawExtension{}
	return request, nil
}

// budget returns the time for deciding on a request: the timeout of the API server less the margin.
func budget(r *http.Request) time.Duration {
	timeout, err := time.ParseDuration(r.URL.Query().Get("timeout"))
	if err != nil || timeout <= 0 {
		timeout = defaultTimeout
	}
	return timeout - min(margin, timeout/2)
}
