// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/cmd/internal/cli"
	"github.com/prebind/prebind/cmd/kubectl-prebind/internal/dryrun"
	"github.com/prebind/prebind/internal/replica"
	"github.com/prebind/prebind/internal/work"
	"github.com/prebind/prebind/policy/v1alpha1"
	"github.com/prebind/prebind/webhook"
)

// longTask is the time after which a BindTask that is not done is a finding.
const longTask = time.Minute

// probeTimeout is the time in which Prebind must answer a probe. A dry run does not wait.
const probeTimeout = 10 * time.Second

// reach is what a probe has found out. It is empty if the user may not post Bindings, if Prebind takes no part in those of the namespace,
// or if the API server cannot call it and has allowed the Binding, because of failurePolicy Ignore.
type reach struct {
	// answered is set if Prebind has answered.
	answered bool
	// failure is why Prebind has not answered, or empty.
	failure string
	// slow is set if the failure does not show that the API server cannot call Prebind.
	slow bool
	// passed is set if the API server has executed the Binding without Prebind.
	passed bool
}

// probe posts a dry-run Binding of a pod that does not exist, which Prebind rejects. The reports of the replicas can be old, and do not show
// whether the API server can call them.
func probe(ctx context.Context, config *rest.Config) reach {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	const name = "prebind-status"
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}}
	answer, err := dryrun.Explain(ctx, config, pod, name, nil)
	var status apierrors.APIStatus
	switch {
	case err != nil || answer.Prebind != nil: // Another version of Prebind has answered, or this one.
		return reach{answered: true}
	case answer.Err != nil && strings.Contains(answer.Err.Error(), `failed calling webhook "`+webhook.Name+`"`):
		return reach{failure: "the API server cannot call Prebind: " + answer.Err.Error()}
	case apierrors.IsTimeout(answer.Err), answer.Err != nil && !errors.As(answer.Err, &status): // Also with a shorter --request-timeout.
		return reach{failure: "no answer to a test Binding: Prebind, another webhook or the API server is slow: " + answer.Err.Error(), slow: true}
	}
	return reach{passed: apierrors.IsNotFound(answer.Err)}
}

// findings returns what needs an action, the most urgent first. They omit what the user may not read. The replicas are those of the namespace own.
func findings(ctx context.Context, client kubernetes.Interface, own string, all []replica.Status, reached reach, now time.Time) []string {
	var found []string
	for _, s := range all {
		if state := health(s, now); !strings.HasPrefix(state, healthy) {
			found = append(found, "replica "+s.Replica+" is not ready: "+state+": see "+cli.Documentation("operations.md#replicas-are-not-ready"))
		}
	}
	r := registrationOf(ctx, client, own)
	// If all replicas are silent, the clock of this computer can be ahead.
	heard := len(all) == 0 || slices.ContainsFunc(all, func(s replica.Status) bool { return now.Sub(s.Reported.Time) <= silentAfter })
	glass := "to bind pods without Prebind: kubectl delete mutatingwebhookconfiguration " + cmp.Or(r.name, "prebind") + ": see " + cli.Documentation("operations.md#break-glass")
	switch {
	case reached.slow:
		found = slices.Insert(found, 0, reached.failure+". If pods are not bound: "+glass)
	case reached.failure != "":
		found = slices.Insert(found, 0, reached.failure+". With failurePolicy Fail, no pod outside the exempt namespaces is bound; "+glass)
	case r.namespace != "" && r.namespace != own:
		return []string{"MutatingWebhookConfiguration " + r.name + " calls Prebind in namespace " + r.namespace + ": use --prebind-namespace=" + r.namespace}
	case !reached.answered && heard && len(found) == len(all) && r.failurePolicy == admissionregistrationv1.Fail:
		found = slices.Insert(found, 0, "no replica is ready. If this stays for ten seconds, the time between two reports, no pod outside the exempt namespaces is bound; "+glass)
	}
	for _, s := range all {
		if s.Lacks != "" {
			found = append(found, "replica "+s.Replica+" decides from old objects: "+s.Lacks)
		}
	}
	if len(found) == 0 && (audits(all) || r.failurePolicy == admissionregistrationv1.Ignore) {
		complete, err := rolledOut(ctx, client, own)
		switch {
		case err != nil:
			r.obstacle = cmp.Or(r.obstacle, "Before you set Fail, check that the rollout of Prebind is complete. This command cannot: "+err.Error())
		case !complete:
			found = append(found, "the rollout of Prebind is not complete, and a replica that restarts may not start: kubectl -n "+own+" get pods: see "+cli.Documentation("operations.md#pods-do-not-start"))
		}
	}
	broken, audited := policiesOf(ctx, client)
	settled := len(found) == 0 && !slices.ContainsFunc(all, func(s replica.Status) bool { return s.Version != all[0].Version || s.Config != all[0].Config })
	found = append(found, nextStep(r, all, settled, reached, len(broken) > 0)...)
	if len(audited) > 0 && !audits(all) {
		found = append(found, "BindPolicies only report (mode Audit): "+strings.Join(audited, ", ")+". When their results are right, set spec.mode Enforce")
	}
	if len(broken) > 0 {
		found = append(found, "BindPolicies are not ready: "+strings.Join(broken, ", ")+": see 'kubectl describe bindpolicy NAME'")
	}
	return slices.Concat(found, lateAnnotations(ctx, client), silentHandler(ctx, client, now))
}

// registration is the webhook in the API server.
type registration struct {
	// name is that of the MutatingWebhookConfiguration, index that of the webhook in it.
	name  string
	index int
	// namespace is that of the Service; empty without a Service, or if the user may not read it.
	namespace string
	// failurePolicy is empty if the user may not read it.
	failurePolicy admissionregistrationv1.FailurePolicyType
	// obstacle is what must be done before failurePolicy Fail, or empty.
	obstacle string
}

// unregistered is in place of the failurePolicy of a webhook that is missing.
const unregistered admissionregistrationv1.FailurePolicyType = "unregistered"

func registrationOf(ctx context.Context, client kubernetes.Interface, own string) registration {
	list, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
	if err != nil {
		return registration{}
	}
	for _, c := range list.Items {
		for i, w := range c.Webhooks {
			if w.Name == webhook.Name {
				namespace := ptr.Deref(w.ClientConfig.Service, admissionregistrationv1.ServiceReference{}).Namespace
				r := registration{name: c.Name, index: i, namespace: namespace, failurePolicy: ptr.Deref(w.FailurePolicy, admissionregistrationv1.Fail)}
				if selector, err := metav1.LabelSelectorAsSelector(w.NamespaceSelector); err != nil || selector.Matches(labels.Set{corev1.LabelMetadataName: own}) {
					r.obstacle = "Before you set Fail, add Prebind's namespace " + own + " to the names in namespaceSelector: see " + cli.Documentation("install.md#exempt-namespaces")
				}
				return r
			}
		}
	}
	return registration{failurePolicy: unregistered}
}

// rolledOut returns whether all pods of the Deployment are new and available, as 'kubectl rollout status' does. New pods that do not start, such as
// with an invalid configuration, have no lease, and the old pods stay ready.
func rolledOut(ctx context.Context, client kubernetes.Interface, own string) (bool, error) {
	d, err := client.AppsV1().Deployments(own).Get(ctx, "prebind", metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	want, s := ptr.Deref(d.Spec.Replicas, 1), d.Status
	return s.ObservedGeneration == d.Generation && s.Replicas == want && s.UpdatedReplicas == want && s.AvailableReplicas == want, nil
}

// audits returns whether the mode is Audit.
func audits(all []replica.Status) bool {
	return len(all) > 0 && all[0].Mode == string(binder.ModeAudit)
}

// nextStep returns the next step of the rollout: register the webhook, audit, enforce, set Fail. The replicas are settled if all are ready
// and have the same configuration, without other findings. Broken says that a BindPolicy is not ready.
func nextStep(r registration, all []replica.Status, settled bool, reached reach, broken bool) []string {
	// In mode Off, a replica allows the test Binding without an explanation.
	off := slices.ContainsFunc(all, func(s replica.Status) bool { return s.Mode == string(binder.ModeOff) })
	switch {
	case r.failurePolicy == unregistered:
		return []string{"no MutatingWebhookConfiguration has the webhook " + webhook.Name + ": the API server does not call Prebind: see " + cli.Documentation("operations.md#apply-the-manifests")}
	case settled && !reached.answered && (audits(all) || !off && (r.failurePolicy == admissionregistrationv1.Ignore || reached.passed)):
		// Nothing else shows that the API server does not call the replicas.
		return []string{"Prebind has not answered a test Binding in namespace default. Without permission to create pods/binding there, if only this namespace is exempt, or if a rule sets mode Off for it, this means nothing; " +
			"otherwise the API server cannot call Prebind, and binds pods without it: see " + cli.Documentation("install.md#check-the-installation")}
	case audits(all) && settled && !broken: // If Prebind enforced, it would reject a bind whose policy is not ready.
		return []string{"mode is Audit. After a week, review prebind_audited_decisions_total and, for the last hour, 'kubectl get events -A --field-selector reason=" + work.ReasonAudited + "'. Then set mode Enforce: with Helm --set config.mode=Enforce, otherwise in the configuration file: see " +
			cli.Documentation("install.md#roll-out")}
	case off:
		return []string{"mode is Off: pods are bound without checks, annotations and preparation, unless a rule sets another mode for their namespace. Set mode Audit: with Helm --set config.mode=Audit, otherwise in the configuration file: see " +
			cli.Documentation("install.md#roll-out")}
	case audits(all) || r.failurePolicy != admissionregistrationv1.Ignore:
		return nil
	}
	remedy := "Set Fail when two replicas with the same version and configuration are ready, in mode Enforce"
	if settled && len(all) >= 2 && all[0].Mode == string(binder.ModeEnforce) {
		remedy = cmp.Or(r.obstacle, fmt.Sprintf("%d replicas are ready. First do the checks of step 3 in %s. To set Fail, now and in your values or "+
			`kustomization: kubectl patch mutatingwebhookconfiguration %s --type=json -p '[{"op": "replace", "path": "/webhooks/%d/failurePolicy", "value": "Fail"}]'`,
			len(all), cli.Documentation("install.md#roll-out"), r.name, r.index))
	}
	return []string{"failurePolicy of MutatingWebhookConfiguration " + r.name + " is Ignore: when the API server cannot call Prebind, it binds pods without it. " + remedy}
}

// policiesOf returns the BindPolicies that are not ready, or that no replica has reported since their last change, and those that only report,
// because somebody may have forgotten the end of a test or of an emergency.
func policiesOf(ctx context.Context, client kubernetes.Interface) (broken, audited []string) {
	for _, p := range policyObjects[v1alpha1.BindPolicy](ctx, client, "bindpolicies") {
		ready := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady)
		switch {
		case ready == nil || ready.ObservedGeneration != p.Generation:
			broken = append(broken, p.Name+" (no replica has reported it since its last change)")
		case ready.Status != metav1.ConditionTrue:
			broken = append(broken, p.Name+" ("+ready.Reason+")")
		}
		if p.Spec.Mode == v1alpha1.ModeAudit {
			audited = append(audited, p.Name)
		}
	}
	return broken, audited
}

// annotationsPolicy is the name of the shipped ValidatingAdmissionPolicy.
const annotationsPolicy = "annotations.prebind.dev"

// lateAnnotations returns that annotations of pods can change after the pods are created, unless a policy prevents it.
func lateAnnotations(ctx context.Context, client kubernetes.Interface) []string {
	list, err := client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().List(ctx, metav1.ListOptions{})
	denies := func(b admissionregistrationv1.ValidatingAdmissionPolicyBinding) bool {
		return b.Spec.PolicyName == annotationsPolicy && slices.Contains(b.Spec.ValidationActions, admissionregistrationv1.Deny)
	}
	if err != nil || slices.ContainsFunc(list.Items, denies) {
		return nil
	}
	return []string{"no binding of ValidatingAdmissionPolicy " + annotationsPolicy + " denies requests: an annotation that is set on a pod after its creation, such as device.prebind.dev/..., can come too late for the bind: see " +
		cli.Documentation("operations.md#apply-the-manifests")}
}

// silentHandler returns the handler that has had a BindTask to do or to undo for the longest time.
func silentHandler(ctx context.Context, client kubernetes.Interface, now time.Time) []string {
	count := map[string]int{}
	silent, since := "", now.Add(-longTask)
	for _, t := range policyObjects[v1alpha1.BindTask](ctx, client, "bindtasks") {
		if t.DeletionTimestamp == nil && (t.IsTrue(v1alpha1.TaskReady) || t.IsTrue(v1alpha1.TaskFailed) || len(t.Spec.Attempts) == 0) {
			continue
		}
		count[t.Spec.Handler]++
		if at := ptr.Deref(t.DeletionTimestamp, t.CreationTimestamp); at.Time.Before(since) {
			silent, since = t.Spec.Handler, at.Time
		}
	}
	if silent == "" {
		return nil
	}
	return []string{fmt.Sprintf("handler %s has not finished %d BindTasks, the oldest for %s: see %s", silent, count[silent], age(now, since),
		cli.Documentation("runbooks/PrebindHandlerSilent.md"))}
}

// policyObjects lists objects of the API of BindPolicies. It returns none if the API server does not serve the API.
func policyObjects[T any](ctx context.Context, client kubernetes.Interface, resource string) []T {
	raw, err := client.Discovery().RESTClient().Get().AbsPath("/apis", v1alpha1.GroupVersion.String(), resource).Param("resourceVersion", "0").Do(ctx).Raw()
	var list struct {
		Items []T `json:"items"`
	}
	if err != nil || json.Unmarshal(raw, &list) != nil {
		return nil
	}
	return list.Items
}
