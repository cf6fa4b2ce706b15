// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/utils/ptr"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
)

const (
	// ordinaryBody is the longest body for which a buffer is allocated because the
	// request announces it. An ordinary review has 2 KiB.
	ordinaryBody = 8 << 10
	// maxUID is well over the length of a UID of the API server's. The answer repeats it.
	maxUID = 128
	// defaultTimeout is the API server's own default.
	defaultTimeout = 10 * time.Second
	// mediaType of reviews and their answers.
	mediaType = "application/json"
	// margin is what an answer may take to get back. The API server rounds the
	// timeout that it sends up to whole seconds, so less would not do.
	margin = time.Second
)

var reviewType = metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"}

// badRequest is why a body is no AdmissionReview.
type badRequest struct {
	code   int
	reason metav1.StatusReason
	err    error
}

// decode reads the request of an AdmissionReview.
func decode(w http.ResponseWriter, r *http.Request) (*admissionv1.AdmissionRequest, *badRequest) {
	bad := func(format string, args ...any) *badRequest {
		return &badRequest{code: http.StatusBadRequest, reason: metav1.StatusReasonBadRequest, err: fmt.Errorf(format, args...)}
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return nil, &badRequest{
			code: http.StatusMethodNotAllowed, reason: metav1.StatusReasonMethodNotAllowed,
			err: fmt.Errorf("an AdmissionReview is posted, this is a %s", r.Method),
		}
	}
	if !isJSON(r.Header.Get("Content-Type")) {
		return nil, &badRequest{
			code: http.StatusUnsupportedMediaType, reason: metav1.StatusReasonUnsupportedMediaType,
			err: fmt.Errorf("the content type is %q, it must be application/json", r.Header.Get("Content-Type")),
		}
	}
	tooLarge := &badRequest{
		code: http.StatusRequestEntityTooLarge, reason: metav1.StatusReasonRequestEntityTooLarge,
		err: fmt.Errorf("the body is larger than %d bytes", maxBody),
	}
	if r.ContentLength > maxBody {
		return nil, tooLarge
	}
	defer r.Body.Close() // Its bytes count until it is decoded.
	body, err := readAll(r.Body, r.ContentLength)
	if limit := (*http.MaxBytesError)(nil); errors.As(err, &limit) {
		return nil, tooLarge
	} else if errors.Is(err, errOverloaded) {
		return nil, &badRequest{code: http.StatusServiceUnavailable, reason: metav1.StatusReasonServiceUnavailable, err: err}
	} else if err != nil {
		return nil, bad("the body could not be read: %w", err)
	}
	var review admissionv1.AdmissionReview
	// The decoder takes nothing that is nested deeper than 10,000 times, as the API
	// server itself does, and needs a stack of bytes for it.
	if err := json.Unmarshal(body, &review); err != nil {
		return nil, bad("the body is no JSON of an AdmissionReview: %w", err)
	}
	switch {
	case review.TypeMeta != reviewType:
		return nil, bad("the body is a %q of %q, not an AdmissionReview of %s", review.Kind, review.APIVersion, reviewType.APIVersion)
	case review.Request == nil:
		return nil, bad("the AdmissionReview has no request")
	case review.Request.UID == "":
		return nil, bad("the AdmissionReview's request has no uid, so it cannot be answered")
	case len(review.Request.UID) > maxUID:
		return nil, bad("the uid of the AdmissionReview's request is longer than %d bytes", maxUID)
	}
	return review.Request, nil
}

func isJSON(contentType string) bool {
	if contentType == mediaType {
		return true
	}
	kind, _, err := mime.ParseMediaType(contentType)
	return err == nil && kind == mediaType
}

// readAll reads a body of this length, at one go where it is that of an ordinary
// review. A length that is not positive is not known; the server reads no more than
// one that is.
func readAll(body io.Reader, length int64) ([]byte, error) {
	if length <= 0 || length > ordinaryBody {
		return io.ReadAll(body)
	}
	all := make([]byte, length)
	_, err := io.ReadFull(body, all)
	return all, err
}

// budget is how long an answer may take: the API server's timeout, less what
// the way back takes.
func budget(r *http.Request) time.Duration {
	value, plain := strings.CutPrefix(r.URL.RawQuery, "timeout=")
	if !plain || strings.ContainsAny(value, "&%+;") {
		value = r.URL.Query().Get("timeout")
	}
	timeout, err := time.ParseDuration(value)
	if err != nil || timeout <= 0 {
		timeout = defaultTimeout
	}
	return timeout - min(margin, timeout/2)
}

// bind is a Binding on its way through the engine.
type bind struct {
	request binder.Request
	// has tells the patch which maps the API server's object has.
	has presence
}

// presence tells which parents of a patched field exist.
type presence struct{ metadata, annotations, labels bool }

// presenceIn tells of an object by what was decoded of it, and looks at the object
// again only where that is not enough: where it has nothing in its metadata.
func presenceIn(raw []byte, b *corev1.Binding) (presence, error) {
	has := presence{annotations: b.Annotations != nil, labels: b.Labels != nil}
	if has.metadata = has.annotations || has.labels || b.Name != "" || b.Namespace != "" || b.UID != ""; has.metadata {
		return has, nil
	}
	var object struct {
		Metadata *struct{} `json:"metadata"`
	}
	err := json.Unmarshal(raw, &object)
	has.metadata = object.Metadata != nil
	return has, err
}

// parse takes the Binding out of a review's request. It returns no bind, but the
// reason, for a request that is none of Prebind's business. An object that calls
// itself a Binding and cannot be read is an error.
func parse(r *admissionv1.AdmissionRequest) (*bind, string, *framework.Error) {
	reason := notBinding(r)
	if reason != "" {
		return nil, reason, nil
	}
	b := &bind{request: binder.Request{User: r.UserInfo, DryRun: ptr.Deref(r.DryRun, false)}}
	binding := &corev1.Binding{}
	err := json.Unmarshal(r.Object.Raw, binding)
	if err == nil {
		b.has, err = presenceIn(r.Object.Raw, binding)
	}
	if err != nil {
		return nil, "", &framework.Error{
			Kind:    framework.KindInvalid,
			Object:  framework.Object{Kind: "Binding", Namespace: r.Namespace, Name: r.Name},
			Message: fmt.Sprintf("the object of the review cannot be read: %v", err),
			Advice:  "post a v1 Binding",
		}
	}
	// An attempt keeps the Binding. Nobody reads these, and a client can fill them.
	binding.ManagedFields, binding.OwnerReferences, binding.Finalizers = nil, nil, nil
	// The bytes are not needed anymore, and the call may be held for long.
	r.Object.Raw = nil
	b.request.Binding = binding
	// On the legacy path the pod's name stands in the object only.
	name := r.Name
	if name == "" {
		name = binding.Name
	}
	b.request.Pod = types.NamespacedName{Namespace: r.Namespace, Name: name}
	return b, "", nil
}

// notBinding says why a request is not the creation of a Binding. It can only
// come from a webhook configuration with other rules than those shipped; to
// refuse it would stop whatever those rules match.
func notBinding(r *admissionv1.AdmissionRequest) string {
	what := r.Resource.Resource
	if r.SubResource != "" {
		what += "/" + r.SubResource
	}
	clip := func(text string) string { return line(text, maxCause) }
	if r.Resource.Group != "" || (what != "pods/binding" && what != "bindings") || r.Operation != admissionv1.Create {
		return fmt.Sprintf("the webhook configuration sends it %s of %q, which it lets pass: its rules must be CREATE of pods/binding and bindings", clip(string(r.Operation)), clip(what))
	}
	if kind := r.Kind; kind.Group != "" || kind.Version != "v1" || kind.Kind != "Binding" {
		return fmt.Sprintf("the object is a %s of %q, which it lets pass: it reads v1 Bindings", clip(kind.Kind), clip(metav1.GroupVersion{Group: kind.Group, Version: kind.Version}.String()))
	}
	return ""
}
