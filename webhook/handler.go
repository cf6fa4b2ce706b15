// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/text"
)

// Engine decides on Bindings. *binder.Engine implements it.
type Engine interface {
	// Bind returns before the context's deadline.
	Bind(ctx context.Context, r binder.Request) binder.Decision
}

// Handler answers AdmissionReviews of Bindings. It is an http.Handler for Path, safe for concurrent use. All fields are required. It
// decodes the review itself, and passes the decision through an admission.Webhook. The library's own decoder answers other bodies with
// code 200, and keeps the bytes of a review while the call is held.
type Handler struct {
	Engine Engine
	// Ready returns an error while the replica cannot decide on Bindings: its caches are not synced, or it is shutting
	// down. The handler then answers 503 with Retry-After, and the API server repeats the call without involving the
	// scheduler.
	Ready func() error
	Log   klog.Logger
	// Clock measures the duration of decisions for the log.
	Clock clock.PassiveClock
}

// ServeHTTP answers an AdmissionReview with an AdmissionReview, and every other request with an HTTP error that has a
// Status as its body. The API server passes the message of the Status on to its client.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h.Ready(); err != nil {
		writeJSON(w, unavailable(err))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), budget(r)) // The time of the API server includes that of the body.
	defer cancel()
	request, problem := readReview(r)
	if request == nil {
		h.Log.V(2).Info("Rejected a request", "from", r.RemoteAddr, "reason", problem.Message)
		writeJSON(w, problem)
		return
	}
	// The library keeps its request until the handler returns, so it gets only the UID. parse releases the object of the other.
	webhook := admission.Webhook{
		Handler: admission.HandlerFunc(func(ctx context.Context, _ admission.Request) admission.Response {
			return h.review(ctx, r.Body, request, problem)
		}),
		LogConstructor: discard,
	}
	response := webhook.Handle(ctx, admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{UID: request.UID}})
	review := &admissionv1.AdmissionReview{Response: &response.AdmissionResponse}
	review.SetGroupVersionKind(reviewKind)
	writeJSON(w, review)
}

// review answers a request, and closes its body before the engine can hold the call: limits then no longer count its bytes. A problem is that
// its object is missing because the body is too large.
func (h *Handler) review(ctx context.Context, body io.Closer, request *request, problem *metav1.Status) admission.Response {
	clip := func(s string) string { return text.Clip(s, maxCause) }
	log := h.Log.WithValues("user", clip(request.UserInfo.Username))
	resource := schema.GroupResource{Group: request.Resource.Group, Resource: request.Resource.Resource + "/" + request.SubResource}
	posted := resource == schema.GroupResource{Resource: "pods/binding"} || resource == schema.GroupResource{Resource: "bindings/"}
	if !posted || request.Operation != admissionv1.Create || request.Kind != (metav1.GroupVersionKind{Version: "v1", Kind: "Binding"}) {
		log.V(2).Info("Allowed a request that is not a Binding", "resource", clip(request.Resource.String()), "operation", clip(string(request.Operation)))
		return admission.Allowed("").WithWarnings(warnings([]string{notBinding})...)
	}
	if problem != nil { // Not an HTTP error: with failurePolicy Ignore, the API server would bind the pod without Prebind.
		log.V(2).Info("Rejected a Binding", "pod", klog.KRef(clip(request.Namespace), clip(request.Name)), "reason", problem.Message)
		return deny(&framework.Error{
			Kind: framework.KindInvalid, Object: framework.Object{Kind: "Binding", Namespace: request.Namespace, Name: request.Name},
			Message: "its AdmissionReview is too large: " + strings.TrimPrefix(problem.Message, "prebind: "), Advice: "post a smaller Binding",
		}, 0)
	}
	bind, err := parse(request)
	_ = body.Close()
	if err != nil {
		return deny(err, 0)
	}
	log = log.WithValues("pod", klog.KRef(clip(bind.Pod.Namespace), clip(bind.Pod.Name)), "node", clip(bind.Binding.Target.Name))
	begin := h.Clock.Now()
	d := h.Engine.Bind(klog.NewContext(ctx, log), bind)
	report(log, d, h.Clock.Since(begin))
	return answer(bind.Binding, d)
}

// discard drops the log lines of the library, which contain text of the caller without a limit. This package writes its own.
func discard(logr.Logger, *admission.Request) logr.Logger { return logr.Discard() }

func report(log klog.Logger, d binder.Decision, took time.Duration) {
	if d.Attempt != "" {
		log = log.WithValues("attempt", d.Attempt)
	}
	if d.Err != nil && d.Err.Kind == framework.KindInternal {
		log.Error(d.Err, "Could not decide on a Binding", "plugin", d.Err.Plugin)
		return
	}
	if !log.V(2).Enabled() {
		return
	}
	log = log.WithValues("decision", d.Kind(), "took", took)
	if d.Calls > 0 {
		log = log.WithValues("calls", d.Calls, "waited", d.Waited)
	}
	err := d.Err
	if a := d.Audit; a != nil {
		log, err = log.WithValues("audited", a.Kind), a.Err
	}
	if err != nil {
		log = log.WithValues("plugin", err.Plugin, "reason", err.Error())
	}
	log.V(2).Info("Decided on a Binding")
}

// unavailable returns the Status that makes the API server repeat the call.
func unavailable(err error) *metav1.Status {
	return failure(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, err)
}

// failure returns the Status that the API server passes on to its client.
func failure(code int32, reason metav1.StatusReason, err error) *metav1.Status {
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure,
		Code:     code,
		Reason:   reason,
		Message:  text.Clip("prebind: "+err.Error(), maxMessage),
	}
}

// writeJSON sends a review or a Status.
func writeJSON(w http.ResponseWriter, body any) {
	code := http.StatusOK
	w.Header().Set("Content-Type", mediaType)
	if status, failed := body.(*metav1.Status); failed {
		code = int(status.Code)
	}
	if code == http.StatusServiceUnavailable {
		// The API server repeats the call over a new connection, which can reach another replica.
		w.Header().Set("Connection", "close")
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // An error means that the caller has disconnected.
}
