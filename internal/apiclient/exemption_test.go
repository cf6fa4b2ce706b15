// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package apiclient

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"
)

// shippedFlowSchema returns the FlowSchema in config/webhook as the API server stores it.
func shippedFlowSchema(t *testing.T) *flowcontrolv1.FlowSchema {
	t.Helper()
	content, err := os.ReadFile("../../config/webhook/base/flowschema.yaml")
	require.NoError(t, err)
	schema := &flowcontrolv1.FlowSchema{}
	require.NoError(t, yaml.UnmarshalStrict(content, schema))
	require.Equal(t, flowSchemaName, schema.Name)
	schema.Status.Conditions = []flowcontrolv1.FlowSchemaCondition{{Type: flowcontrolv1.FlowSchemaConditionDangling, Status: flowcontrolv1.ConditionFalse}}
	return schema
}

func TestExemptSubjects(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(s *flowcontrolv1.FlowSchema)
		want   string
	}{
		"Shipped":  {reason: "the shipped object exempts kube-scheduler", change: func(*flowcontrolv1.FlowSchema) {}},
		"Level":    {reason: "in another priority level, calls occupy seats", change: func(s *flowcontrolv1.FlowSchema) { s.Spec.PriorityLevelConfiguration.Name = "workload-high" }, want: `its priority level is "workload-high", not "exempt"`},
		"Disabled": {reason: "the API server does not enforce priority and fairness", change: func(s *flowcontrolv1.FlowSchema) { s.Status.Conditions = nil }, want: "the API server has not set its condition Dangling to False"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			schema := shippedFlowSchema(t)
			tc.change(schema)
			subjects, err := exemptSubjects(schema)
			if tc.want != "" {
				require.EqualError(t, err, tc.want, tc.reason)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, schema.Spec.Rules[0].Subjects, subjects, tc.reason)
		})
	}
}

func TestCovers(t *testing.T) {
	user := func(name string) flowcontrolv1.Subject {
		return flowcontrolv1.Subject{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: name}}
	}
	group := func(name string) flowcontrolv1.Subject {
		return flowcontrolv1.Subject{Kind: flowcontrolv1.SubjectKindGroup, Group: &flowcontrolv1.GroupSubject{Name: name}}
	}
	account := func(namespace, name string) flowcontrolv1.Subject {
		return flowcontrolv1.Subject{Kind: flowcontrolv1.SubjectKindServiceAccount, ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Namespace: namespace, Name: name}}
	}
	volcano := authenticationv1.UserInfo{Username: "system:serviceaccount:volcano-system:volcano", Groups: []string{"system:serviceaccounts"}}
	cases := map[string]struct {
		subject flowcontrolv1.Subject
		want    bool
	}{
		"User":            {subject: user(volcano.Username), want: true},
		"OtherUser":       {subject: user("system:kube-scheduler")},
		"EveryUser":       {subject: user("*"), want: true},
		"Group":           {subject: group("system:serviceaccounts"), want: true},
		"OtherGroup":      {subject: group("system:masters")},
		"Account":         {subject: account("volcano-system", "volcano"), want: true},
		"OtherAccount":    {subject: account("volcano-system", "admin")},
		"EveryAccount":    {subject: account("volcano-system", "*"), want: true},
		"OtherNamespace":  {subject: account("volcano", "*")},
		"NothingSelected": {},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, covers(tc.subject, volcano)) })
	}
}

func TestExemption_Update(t *testing.T) {
	schemas := flowcontrolv1.Resource("flowschemas")
	cases := map[string]struct {
		reason string
		// err is the answer to a read after one that succeeded.
		err    error
		exempt bool
	}{
		"Read":        {reason: "the FlowSchema exempts the user", exempt: true},
		"Deleted":     {reason: "a deleted FlowSchema exempts no users", err: apierrors.NewNotFound(schemas, flowSchemaName)},
		"Forbidden":   {reason: "the FlowSchema may have changed", err: apierrors.NewForbidden(schemas, flowSchemaName, nil)},
		"Unavailable": {reason: "one failed read does not change the FlowSchema", err: apierrors.NewServiceUnavailable("later"), exempt: true},
		"Timeout":     {reason: "the API server has not answered", err: context.DeadlineExceeded, exempt: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var who func(authenticationv1.UserInfo) bool
			client := fake.NewClientset(shippedFlowSchema(t))
			x := &Exemption{Client: client, Apply: func(f func(authenticationv1.UserInfo) bool) { who = f }}
			x.update(t.Context())
			client.PrependReactor("get", "flowschemas", func(clienttesting.Action) (bool, runtime.Object, error) { return tc.err != nil, nil, tc.err })
			x.update(t.Context())
			if !tc.exempt {
				assert.Nil(t, who, tc.reason)
				return
			}
			require.NotNil(t, who, tc.reason)
			assert.True(t, who(authenticationv1.UserInfo{Username: "system:kube-scheduler"}), tc.reason)
			assert.False(t, who(authenticationv1.UserInfo{Username: "another"}))
		})
	}
}
