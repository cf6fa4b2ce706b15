// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package apiclient

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
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
	scheduler := authenticationv1.UserInfo{Username: "system:kube-scheduler"}
	var who func(authenticationv1.UserInfo) bool
	client := fake.NewClientset(shippedFlowSchema(t))
	x := &Exemption{Client: client, Apply: func(f func(authenticationv1.UserInfo) bool) { who = f }}
	x.update(t.Context())
	require.NotNil(t, who)
	assert.True(t, who(scheduler))
	assert.False(t, who(authenticationv1.UserInfo{Username: "another"}))
	require.NoError(t, client.FlowcontrolV1().FlowSchemas().Delete(t.Context(), flowSchemaName, metav1.DeleteOptions{}))
	x.update(t.Context())
	assert.Nil(t, who, "a deleted FlowSchema exempts no users")
}
