// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/internal/text"
)

const (
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

// lenient are the options of decoding. The API server replaces bytes that are not UTF-8, which a client can send in protobuf. Two keys of
// annotations can then be the same. A review that cannot be decoded must not result: with failurePolicy Ignore, the API server would bind
// the pod without Prebind.
var lenient = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

// review and request are the parts of an AdmissionReview of v1 that Prebind reads. Decoding skips the others without allocating memory: anybody
// can post a review, and an empty item of some lists needs thirty times its size.
type review struct {
	metav1.TypeMeta `json:",inline"`

	Request *request `json:"request"`
}

type request struct {
	UID         types.UID                   `json:"uid"`
	Kind        metav1.GroupVersionKind     `json:"kind"`
	Resource    metav1.GroupVersionResource `json:"resource"`
	SubResource string                      `json:"subResource"`
	Name        string                      `json:"name"`
	Namespace   string                      `json:"namespace"`
	Operation   admissionv1.Operation       `json:"operation"`
	UserInfo    authenticationv1.UserInfo   `json:"userInfo"`
	Object      jsontext.Value              `json:"object"`
	DryRun      bool                        `json:"dryRun"`
}

var reviewKind = admissionv1.SchemeGroupVersion.WithKind("AdmissionReview")

func invalid(format string, args ...any) *metav1.Status {
	return failure(http.StatusBadRequest, metav1.StatusReasonBadRequest, fmt.Errorf(format, args...))
}

// readReview returns the request of the AdmissionReview of v1 in the body. If the body is too large, it returns the problem and the beginning
// of the request, to reject it.
func readReview(r *http.Request) (*request, *metav1.Status) {
	body, problem := readBody(r)
	if body == nil {
		return nil, problem
	}
	var review review
	if err := json.Unmarshal(body, &review, lenient); err != nil && problem == nil {
		return nil, invalid("the body is not a valid AdmissionReview: %w", decoding(err))
	}
	request := review.Request
	if review.GroupVersionKind() != reviewKind || request == nil || request.UID == "" || len(request.UID) > maxUID {
		return nil, cmp.Or(problem, invalid("the body is not an AdmissionReview of %s with a request that has a uid", reviewKind.GroupVersion()))
	}
	return request, problem
}

// readBody returns the body, within the limits. If it is too large, readBody also returns its beginning.
func readBody(r *http.Request) ([]byte, *metav1.Status) {
	body, err := io.ReadAll(r.Body)
	limit := (*http.MaxBytesError)(nil)
	switch {
	case errors.As(err, &limit):
		return body, failure(http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge, fmt.Errorf("the body is larger than %d bytes", maxBody))
	case errors.Is(err, errOverloaded):
		return nil, unavailable(err)
	case err != nil:
		return nil, invalid("reading the body: %w", err)
	}
	return body, nil
}

// decoding returns an error of decoding with a text that is the same in all replicas. That of a SemanticError differs between processes
// by chance.
func decoding(err error) error {
	e, ok := errors.AsType[*json.SemanticError](err)
	if !ok {
		return err
	}
	message := fmt.Sprintf("JSON %s instead of Go %v within %q", e.JSONKind, e.GoType, text.Clip(string(e.JSONPointer), maxPath))
	if e.Err != nil {
		message += ": " + e.Err.Error()
	}
	return errors.New(message)
}

// budget returns the time for deciding on a request: the timeout of the API server less the margin.
func budget(r *http.Request) time.Duration {
	timeout, err := time.ParseDuration(r.URL.Query().Get("timeout"))
	if err != nil || timeout <= 0 {
		timeout = defaultTimeout
	}
	return timeout - min(margin, timeout/2)
}
