// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metajson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/types"
	apijson "k8s.io/apimachinery/pkg/util/json"
)

const (
	// ordinaryBody is the maximum length of a body for which readAll allocates a buffer in advance, and of which an answer
	// may repeat parts. Most reviews have 2 KiB.
	ordinaryBody = 8 << 10
	// reviewPrefix is the beginning of every review that the API server sends.
	reviewPrefix = `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{`
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

// badRequest describes a request that gets an HTTP error instead of a review.
type badRequest struct {
	code   int
	reason metav1.StatusReason
	err    error
}

func invalid(format string, args ...any) *badRequest {
	return &badRequest{code: http.StatusBadRequest, reason: metav1.StatusReasonBadRequest, err: fmt.Errorf(format, args...)}
}

// readReview reads the body of a request. It checks the method, content type, size, kind and UID, because
// admission.Webhook does not check them or does not answer with an HTTP status. See split for the results.
func readReview(w http.ResponseWriter, r *http.Request) (review, object []byte, bad *badRequest) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return nil, nil, &badRequest{
			code: http.StatusMethodNotAllowed, reason: metav1.StatusReasonMethodNotAllowed,
			err: fmt.Errorf("method %s is not allowed: send an AdmissionReview with POST", r.Method),
		}
	}
	if !isJSON(r.Header.Get("Content-Type")) {
		return nil, nil, &badRequest{
			code: http.StatusUnsupportedMediaType, reason: metav1.StatusReasonUnsupportedMediaType,
			err: fmt.Errorf("content type %q is not supported: send application/json", r.Header.Get("Content-Type")),
		}
	}
	tooLarge := &badRequest{
		code: http.StatusRequestEntityTooLarge, reason: metav1.StatusReasonRequestEntityTooLarge,
		err: fmt.Errorf("the body is larger than %d bytes", maxBody),
	}
	if r.ContentLength > maxBody {
		return nil, nil, tooLarge
	}
	body, err := readAll(r.Body, r.ContentLength)
	if bad = bodyProblem(err, tooLarge); bad == nil {
		review, object, bad = split(body)
	}
	if bad != nil {
		_ = r.Body.Close() // Limits no longer count its bytes.
	}
	return review, object, bad
}

// bodyProblem maps an error of reading a body to an HTTP error.
func bodyProblem(err error, tooLarge *badRequest) *badRequest {
	if limit := (*http.MaxBytesError)(nil); errors.As(err, &limit) {
		return tooLarge
	} else if errors.Is(err, errOverloaded) {
		return &badRequest{code: http.StatusServiceUnavailable, reason: metav1.StatusReasonServiceUnavailable, err: err}
	} else if err != nil {
		return invalid("reading the body: %w", err)
	}
	return nil
}

func isJSON(contentType string) bool {
	if contentType == mediaType {
		return true
	}
	kind, _, err := mime.ParseMediaType(contentType)
	return err == nil && kind == mediaType
}

// readAll reads a body of the given length. For lengths up to ordinaryBody it allocates once. A length that is not
// positive is unknown. The server does not read past a known length.
func readAll(body io.Reader, length int64) ([]byte, error) {
	if length <= 0 || length > ordinaryBody {
		return io.ReadAll(body)
	}
	all := make([]byte, length)
	_, err := io.ReadFull(body, all)
	return all, err
}

// split rejects a body that is not an AdmissionReview of v1, because admission.Webhook would decode it and repeat its
// kind and UID in the answer. split returns a small review with the prefix of the API server unchanged. If its kind and
// UID are wrong, the answer is wrong, but still small.
//
// For every other review, split returns the object separately. admission.Webhook keeps its request until the handler
// returns. A held call would otherwise keep up to maxBody unused bytes.
func split(body []byte) (review, object []byte, bad *badRequest) {
	if len(body) <= ordinaryBody && bytes.HasPrefix(body, []byte(reviewPrefix)) {
		return body, nil, nil
	}
	// admission.Webhook determines the kind of the answer with the same function.
	kind, err := metajson.DefaultMetaFactory.Interpret(body)
	if err != nil {
		return nil, nil, invalidReview(err)
	}
	if *kind != reviewKind {
		return nil, nil, invalid("the body is a %q of %q, not an AdmissionReview of %s", kind.Kind, groupVersion(kind), reviewKind.GroupVersion())
	}
	var parts struct {
		metav1.TypeMeta `json:",inline"`
		Request         map[string]json.RawMessage `json:"request"`
	}
	if err := apijson.Unmarshal(body, &parts); err != nil {
		return nil, nil, invalidReview(err)
	}
	if parts.Request == nil {
		return nil, nil, invalid("the AdmissionReview has no request")
	}
	var uid types.UID
	if raw := parts.Request["uid"]; raw != nil {
		if err := json.Unmarshal(raw, &uid); err != nil {
			return nil, nil, invalidReview(err)
		}
	}
	if bad := checkUID(uid); bad != nil {
		return nil, nil, bad
	}
	if object = parts.Request["object"]; string(object) == "null" {
		object = nil
	}
	parts.APIVersion, parts.Kind = reviewKind.ToAPIVersionAndKind()
	maps.DeleteFunc(parts.Request, func(field string, _ json.RawMessage) bool { return !slices.Contains(readFields, field) })
	if review, err = json.Marshal(parts); err != nil {
		return nil, nil, invalidReview(err)
	}
	return review, object, nil
}

// readFields are the fields of a request that the handler reads, except the object.
var readFields = []string{"uid", "kind", "resource", "subResource", "name", "namespace", "operation", "userInfo", "dryRun"}

func checkUID(uid types.UID) *badRequest {
	switch {
	case uid == "":
		return invalid("the request of the AdmissionReview has no uid")
	case len(uid) > maxUID:
		return invalid("the uid of the AdmissionReview's request is longer than %d bytes", maxUID)
	default:
		return nil
	}
}

func groupVersion(kind *schema.GroupVersionKind) string { return kind.GroupVersion().String() }

func invalidReview(err error) *badRequest {
	return invalid("the body is not a valid AdmissionReview: %w", err)
}

// budget returns the time for deciding on a request: the timeout of the API server less the margin.
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

// exchange passes a review to admission.Webhook and its answer back. It is not safe for concurrent use.
type exchange struct {
	http.ResponseWriter
	body bytes.Reader
	// object is the object of the review if the body does not contain it.
	object []byte
	// counted is the body of the HTTP request. Limits count its bytes until it is closed.
	counted io.Closer
	// decoded is set once admission.Webhook has called the handler. It writes a refusal before that.
	decoded bool
	refusal []byte
	// bad is set by the handler if it cannot answer the request with a review.
	bad *badRequest
	// err is the error of writing the answer.
	err error
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

// accept records that the review is decoded, and releases its bytes, because the call may be held.
func (x *exchange) accept() {
	x.decoded = true
	x.release()
}

func (x *exchange) release() {
	x.body.Reset(nil)
	_ = x.counted.Close() // The body was read to the end.
}

// Write implements http.ResponseWriter. It sends only the answer, and keeps a refusal.
func (x *exchange) Write(p []byte) (int, error) {
	switch {
	case x.bad != nil:
	case !x.decoded:
		x.refusal = append(x.refusal, p...)
	default:
		var n int
		n, x.err = x.ResponseWriter.Write(p)
		return n, x.err
	}
	return len(p), nil
}

// failed returns nil if the exchange has an answer.
func (x *exchange) failed() *badRequest {
	if x.bad != nil || x.decoded {
		return x.bad
	}
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(x.refusal, &review); err != nil || review.Response == nil || review.Response.Result == nil {
		return invalidReview(errors.New("unknown reason"))
	}
	return invalidReview(errors.New(review.Response.Result.Message))
}
