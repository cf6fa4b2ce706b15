// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/prebind/prebind/binder/api"
)

// attemptAnnotation is where a bound pod tells which attempt bound it.
func attemptAnnotation(domain string) string { return guardName + "." + domain + "/attempt" }

// timeoutAnnotation is where a Binding, or a pod, asks for another budget.
func timeoutAnnotation(domain string) string { return guardName + "." + domain + "/timeout" }

// attemptSeparator stands between the replica and the rest of an attempt's ID.
const attemptSeparator = "-"

// newAttemptID returns an identifier that no other attempt has, for all that
// matters: only attempts for one pod on one node are ever told apart by it. It
// begins with the replica, so that it can be told whether that still lives.
func (e *Engine) newAttemptID() string { return e.o.Replica + attemptSeparator + rand.String(10) }

// replicaOf is the replica that an attempt belongs to.
func replicaOf(attempt string) string {
	replica, _, _ := strings.Cut(attempt, attemptSeparator)
	return replica
}

// budget is how long the attempt may take: what the Binding or else the pod asks
// for, at most the operator's limit, or the operator's default.
func (e *Engine) budget(b *corev1.Binding, pod *corev1.Pod) (time.Duration, *api.Error) {
	key := timeoutAnnotation(e.o.Domain)
	object := api.Object{Kind: "Binding", Namespace: pod.Namespace, Name: pod.Name}
	text, ok := b.Annotations[key]
	if !ok {
		object.Kind = "Pod"
		text, ok = pod.Annotations[key]
	}
	if !ok {
		return e.o.PreBindTimeout, nil
	}
	budget, err := time.ParseDuration(text)
	if err != nil || budget <= 0 {
		return 0, &api.Error{
			Kind: api.KindInvalid, Plugin: guardName, Object: object,
			Message: "its annotation " + key + " is no time",
			Advice:  "write it such as 90s or 5m",
			Fields:  []api.Field{{Path: "metadata.annotations[" + key + "]", Message: "must be a positive duration"}},
		}
	}
	return min(budget, e.o.MaxPreBindTimeout), nil
}
