// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/text"
)

const (
	// maxWarningRunes is the number of runes that the API server passes on of all warnings together.
	maxWarningRunes = 4096
	// maxMessage, maxCause and maxPath limit the texts of a denial, in bytes. maxCauses limits the number of its fields. JSON
	// escapes a byte with up to six bytes, so an answer without its patch has less than 128 KiB.
	maxMessage, maxCause, maxPath, maxCauses = 4096, 384, 128, 24
)

// codes are the codes and reasons of denials. client-go repeats a request after 429. kube-scheduler v1.37 and newer also
// repeats a bind after InternalError, ServiceUnavailable and a refused connection. Therefore Prebind does not answer 500 or 503 to a
// Binding that must wait.
var codes = map[framework.Kind]struct {
	code   int32
	reason metav1.StatusReason
}{
	framework.KindWait:     {http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests},
	framework.KindRefuse:   {http.StatusForbidden, metav1.StatusReasonForbidden},
	framework.KindStale:    {http.StatusPreconditionFailed, ReasonStale},
	framework.KindInvalid:  {http.StatusUnprocessableEntity, metav1.StatusReasonInvalid},
	framework.KindInternal: {http.StatusInternalServerError, metav1.StatusReasonInternalError},
}

// answer returns the response to a decision, with an explanation if the Binding requests one.
func answer(b *corev1.Binding, d binder.Decision) admission.Response {
	var response admission.Response
	if d.Err != nil {
		response = deny(d.Err, d.RetryAfter)
	} else {
		if patch := patchFor(b, d); len(patch) > 0 {
			response.PatchType = new(admissionv1.PatchTypeJSONPatch)
			response.Patch, _ = json.Marshal(patch) // Strings, and maps of them: it cannot fail.
		}
		response.Allowed, response.AuditAnnotations = true, map[string]string{AuditKeyDecision: d.Kind()}
	}
	if a := d.Audit; a != nil {
		response.AuditAnnotations[AuditKeyAudited] = a.Kind
		if a.Err != nil {
			response.AuditAnnotations[AuditKeyPlugin] = a.Err.Plugin
		}
	}
	if d.Attempt != "" {
		response.AuditAnnotations[AuditKeyAttempt] = d.Attempt
	}
	if d.Calls > 0 {
		response.AuditAnnotations[AuditKeyCalls] = strconv.Itoa(d.Calls)
		response.AuditAnnotations[AuditKeyWaited] = d.Waited.Round(time.Millisecond).String()
	}
	response.Warnings = warnings(d.Warnings)
	if _, asked := b.Annotations[ExplainAnnotation]; asked && d.Explanation != nil {
		text, err := encodeExplanation(*d.Explanation)
		if err != nil {
			text = "prebind: " + err.Error()
		}
		// The explanation contains the other warnings, and the API server limits all warnings together.
		response.Warnings = []string{text}
	}
	return response
}

// deny returns the response to an error. The message is one line for people. The causes contain the same data for programs;
// see contract.go. An error without a plugin is about Prebind itself.
func deny(err *framework.Error, retryAfter time.Duration) admission.Response {
	err = framework.AsError(framework.Binder, err)
	to, known := codes[err.Kind]
	switch {
	case !known:
		to = codes[framework.KindInternal]
	case errors.Is(err, binder.ErrPodNotFound):
		to.code, to.reason = http.StatusNotFound, metav1.StatusReasonNotFound
	}
	details := &metav1.StatusDetails{
		RetryAfterSeconds: int32(retryAfter / time.Second),
		Causes:            []metav1.StatusCause{{Type: CausePlugin, Message: text.Clip(err.Plugin, maxCause)}},
	}
	if object := err.Object.String(); object != "" {
		details.Causes = append(details.Causes, metav1.StatusCause{Type: CauseObject, Message: text.Clip(object, maxCause)})
	}
	for _, f := range err.Fields[:min(len(err.Fields), maxCauses)] {
		details.Causes = append(details.Causes, metav1.StatusCause{
			Type: CauseField, Field: text.Clip(f.Path, maxPath), Message: text.Clip(f.Message, maxCause),
		})
	}
	return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{
		Result: &metav1.Status{
			Status: metav1.StatusFailure, Code: to.code, Reason: to.reason, Message: text.Clip(err.Error(), maxMessage), Details: details,
		},
		AuditAnnotations: map[string]string{AuditKeyDecision: string(err.Kind), AuditKeyPlugin: text.Clip(err.Plugin, maxCause)},
	}}
}

// warnings returns the first warnings, as many as the API server passes on without truncating one.
func warnings(all []string) []string {
	left := maxWarningRunes
	var kept []string
	for _, w := range all {
		w = text.Clip("prebind: "+w, utf8.UTFMax*maxWarningRunes)
		if left -= utf8.RuneCountInString(w); left < 0 {
			break
		}
		kept = append(kept, w)
	}
	return kept
}
