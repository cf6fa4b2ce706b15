// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package apiclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

const (
	// flowSchemaName is the name of the FlowSchema that exempts the Bindings of schedulers.
	flowSchemaName = "prebind"
	// exemptInterval is the time between two reads of the FlowSchema.
	exemptInterval = 30 * time.Second
)

// The number of calls that Prebind holds depends on whether the API server exempts them.
//
// +kubebuilder:rbac:groups=flowcontrol.apiserver.k8s.io,resources=flowschemas,resourceNames=prebind,verbs=get

// Exemption follows the FlowSchema prebind. The FlowSchema selects the users whose Bindings the
// API server exempts from its concurrency limits. Exemption is a manager.Runnable.
type Exemption struct {
	client kubernetes.Interface
	apply  func(exempt func(authenticationv1.UserInfo) bool)
	// enforced is set if the API server that has sent the last response enforces priority and fairness.
	enforced bool
	// logged is the last text in the log.
	logged string
}

// NewExemption returns an Exemption whose requests have a time limit. It calls apply with a function that reports whether a user is
// exempt, or with nil if no user is exempt.
func NewExemption(config *rest.Config, takes time.Duration, apply func(exempt func(authenticationv1.UserInfo) bool)) (*Exemption, error) {
	x := &Exemption{apply: apply}
	own := rest.CopyConfig(config)
	own.Timeout = takes
	own.Wrap(func(next http.RoundTripper) http.RoundTripper { return observer{next: next, enforced: &x.enforced} })
	var err error
	if x.client, err = kubernetes.NewForConfig(own); err != nil {
		return nil, fmt.Errorf("setting up a client: %w", err)
	}
	return x, nil
}

// observer sets enforced to whether the response has the header of priority and fairness. The API server adds it in each priority level, also
// exempt. With --enable-priority-and-fairness=false, it does not, but the FlowSchema keeps its conditions.
type observer struct {
	next     http.RoundTripper
	enforced *bool
}

// RoundTrip implements http.RoundTripper.
func (o observer) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := o.next.RoundTrip(r)
	*o.enforced = err == nil && response.Header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID) != ""
	return response, err
}

// Start reads the FlowSchema every 30 seconds until the context ends.
func (x *Exemption) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, x.update, exemptInterval)
	return nil
}

// update reads the FlowSchema once. If the FlowSchema is missing or may not be read, no user is exempt. After another error, such as a
// timeout, the last answer stays.
func (x *Exemption) update(ctx context.Context) {
	schema, err := x.client.FlowcontrolV1().FlowSchemas().Get(ctx, flowSchemaName, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		klog.V(2).InfoS("Could not read the FlowSchema, will retry", "flowSchema", flowSchemaName, "reason", err.Error())
		return
	}
	var subjects []flowcontrolv1.Subject
	if err == nil {
		subjects, err = exemptSubjects(schema, x.enforced)
	}
	var text string
	if err != nil {
		text = err.Error()
		x.apply(nil)
	} else {
		encoded, _ := json.Marshal(subjects) // Encoding strings cannot fail.
		text = string(encoded)
		x.apply(func(u authenticationv1.UserInfo) bool {
			return slices.ContainsFunc(subjects, func(s flowcontrolv1.Subject) bool { return covers(s, u) })
		})
	}
	switch {
	case text == x.logged:
		return
	case err != nil:
		klog.InfoS("Held calls occupy API server seats: the FlowSchema does not exempt Bindings", "flowSchema", flowSchemaName, "reason", text)
	default:
		klog.InfoS("Held calls of these schedulers occupy no API server seats", "flowSchema", flowSchemaName, "subjects", text)
	}
	x.logged = text
}

// exemptSubjects returns the subjects whose requests the FlowSchema exempts, which are Bindings. If it exempts none,
// the error is the reason.
func exemptSubjects(schema *flowcontrolv1.FlowSchema, enforced bool) ([]flowcontrolv1.Subject, error) {
	if level := schema.Spec.PriorityLevelConfiguration.Name; level != flowcontrolv1.PriorityLevelConfigurationNameExempt {
		return nil, fmt.Errorf("its priority level is %q, not %q", level, flowcontrolv1.PriorityLevelConfigurationNameExempt)
	}
	if !enforced {
		// Held calls count against --max-mutating-requests-inflight.
		return nil, errors.New("the API server does not enforce priority and fairness")
	}
	var subjects []flowcontrolv1.Subject
	for _, rule := range schema.Spec.Rules {
		subjects = append(subjects, rule.Subjects...)
	}
	return subjects, nil
}

// covers reports whether the user is the subject or a member of its group.
func covers(s flowcontrolv1.Subject, u authenticationv1.UserInfo) bool {
	switch {
	case s.User != nil:
		return s.User.Name == flowcontrolv1.NameAll || s.User.Name == u.Username
	case s.Group != nil:
		return s.Group.Name == flowcontrolv1.NameAll || slices.Contains(u.Groups, s.Group.Name)
	case s.ServiceAccount != nil:
		namespace, name, err := serviceaccount.SplitUsername(u.Username)
		return err == nil && namespace == s.ServiceAccount.Namespace && (s.ServiceAccount.Name == flowcontrolv1.NameAll || s.ServiceAccount.Name == name)
	default:
		return false
	}
}
