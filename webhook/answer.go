// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
)

const (
	// maxWarningRunes is what the API server passes on of all warnings together.
	maxWarningRunes = 4096
	// maxMessage, maxCause and maxPath bound the texts of a denial, in bytes, and
	// maxCauses the number of its fields. They also hold for denials that the engine does
	// not make. JSON escapes a byte with up to six: an answer without its patch has less
	// than 128 KiB.
	maxMessage, maxCause, maxPath, maxCauses = 4096, 384, 128, 24
)

// Types of the causes in a denial's details.
const (
	// CausePlugin names the plugin that refused.
	CausePlugin metav1.CauseType = "Plugin"
	// CauseObject names the object that the refusal is about.
	CauseObject metav1.CauseType = "Object"
)

// reasonStale is the reason of a Binding for a pod that has changed. The API has none
// for 412.
const reasonStale metav1.StatusReason = "PreconditionFailed"

// codes are the answers by kind. A client repeats 429 by itself. From v1.37 on
// kube-scheduler repeats a bind after an InternalError, a ServiceUnavailable and a
// Conflict as well, so 500 and 503 do not stand for waiting, and a stale Binding is not
// answered with 409 as the API server itself does.
var codes = map[framework.Kind]struct {
	code   int32
	reason metav1.StatusReason
}{
	framework.KindWait:     {http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests},
	framework.KindRefuse:   {http.StatusForbidden, metav1.StatusReasonForbidden},
	framework.KindStale:    {http.StatusPreconditionFailed, reasonStale},
	framework.KindInvalid:  {http.StatusUnprocessableEntity, metav1.StatusReasonInvalid},
	framework.KindInternal: {http.StatusInternalServerError, metav1.StatusReasonInternalError},
}

// answer makes the response to a decision, with the explanation of it where the
// Binding asks for one.
func answer(b *bind, d binder.Decision, domain string) *admissionv1.AdmissionResponse {
	response := respond(b, d)
	if _, asked := b.request.Binding.Annotations[ExplainAnnotation(domain)]; asked && d.Explanation != nil {
		text, err := encodeExplanation(*d.Explanation)
		if err != nil {
			text = "prebind: " + err.Error()
		}
		// It has the others in it, and needs all the room.
		response.Warnings = []string{text}
	}
	return response
}

// respond makes the response to a decision.
func respond(b *bind, d binder.Decision) *admissionv1.AdmissionResponse {
	if d.Err == nil {
		return allow(patchFor(b, d), d)
	}
	response := deny(d.Err, d.RetryAfter)
	course(response, d)
	response.Warnings = warnings(d.Warnings)
	return response
}

// allow makes the response that lets the bind go ahead, with the patch if there is
// one.
func allow(patch []byte, d binder.Decision) *admissionv1.AdmissionResponse {
	response := &admissionv1.AdmissionResponse{Allowed: true, AuditAnnotations: map[string]string{"decision": d.Kind()}}
	if a := d.Audit; a != nil {
		response.AuditAnnotations["audited"] = a.Kind
		if a.Err != nil {
			response.AuditAnnotations["plugin"] = a.Err.Plugin
		}
	}
	if patch != nil {
		response.Patch = patch
		response.PatchType = ptr.To(admissionv1.PatchTypeJSONPatch)
	}
	course(response, d)
	response.Warnings = warnings(d.Warnings)
	return response
}

// course lets the audit log tell of the attempt, and of the calls and the wait where
// there was more than one call, or an attempt.
func course(response *admissionv1.AdmissionResponse, d binder.Decision) {
	if d.Attempt != "" {
		response.AuditAnnotations["attempt"] = d.Attempt
	}
	if d.Calls > 0 {
		response.AuditAnnotations["calls"] = strconv.Itoa(d.Calls)
		response.AuditAnnotations["waited"] = d.Waited.Round(time.Millisecond).String()
	}
}

// deny makes the response to an error. Its message is one line for people, its
// causes the same for programs.
func deny(err *framework.Error, retryAfter time.Duration) *admissionv1.AdmissionResponse {
	to, known := codes[err.Kind]
	if !known {
		to = codes[framework.KindInternal]
	}
	details := &metav1.StatusDetails{RetryAfterSeconds: int32(retryAfter / time.Second)}
	if err.Plugin != "" {
		details.Causes = append(details.Causes, metav1.StatusCause{Type: CausePlugin, Message: line(err.Plugin, maxCause)})
	}
	if object := err.Object.String(); object != "" {
		details.Causes = append(details.Causes, metav1.StatusCause{Type: CauseObject, Message: line(object, maxCause)})
	}
	for _, f := range err.Fields[:min(len(err.Fields), maxCauses)] {
		details.Causes = append(details.Causes, metav1.StatusCause{
			Type: metav1.CauseTypeFieldValueInvalid, Field: line(f.Path, maxPath), Message: line(f.Message, maxCause),
		})
	}
	return &admissionv1.AdmissionResponse{
		Result: &metav1.Status{
			Status: metav1.StatusFailure, Code: to.code, Reason: to.reason, Message: line(err.Error(), maxMessage), Details: details,
		},
		AuditAnnotations: map[string]string{"decision": string(err.Kind), "plugin": line(err.Plugin, maxCause)},
	}
}

// warnings keeps as many whole warnings as the API server passes on.
func warnings(all []string) []string {
	left := maxWarningRunes
	var kept []string
	for _, w := range all {
		w = line("prebind: "+w, utf8.UTFMax*maxWarningRunes)
		if left -= utf8.RuneCountInString(w); left < 0 {
			break
		}
		kept = append(kept, w)
	}
	return kept
}

// line returns at most so many bytes of the text as one line without control
// characters: the API server drops a warning that has one.
func line(text string, most int) string {
	if len(text) > most {
		text = text[:most-len("…")] + "…"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "\ufffd"))
}
