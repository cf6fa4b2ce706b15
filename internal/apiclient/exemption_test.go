// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package apiclient

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"
)

// shippedFlowSchema returns the FlowSchema in config/webhook.
func shippedFlowSchema(t *testing.T) *flowcontrolv1.FlowSchema {
	t.Helper()
	content, err := os.ReadFile("../../config/webhook/base/flowschema.yaml")
	require.NoError(t, err)
	schema := &flowcontrolv1.FlowSchema{}
	require.NoError(t, yaml.UnmarshalStrict(content, schema))
	require.Equal(t, flowSchemaName, schema.Name)
	return schema
}

func TestExemptSubjects(t *testing.T) {
	cases := map[string]struct {
		reason   string
		level    string
		enforced bool
		want     string
	}{
		"Shipped":  {reason: "the shipped object exempts kube-scheduler", level: "exempt", enforced: true},
		"Level":    {reason: "in another priority level, calls occupy seats", level: "workload-high", enforced: true, want: `its priority level is "workload-high", not "exempt"`},
		"Disabled": {reason: "without priority and fairness, the FlowSchema has no effect", level: "exempt", want: "the API server does not enforce priority and fairness"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			schema := shippedFlowSchema(t)
			schema.Spec.PriorityLevelConfiguration.Name = tc.level
			subjects, err := exemptSubjects(schema, tc.enforced)
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
			x := &Exemption{client: client, apply: func(f func(authenticationv1.UserInfo) bool) { who = f }, enforced: true}
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

// TestExemption_Header checks that users are exempt only while the responses show that the API server enforces priority and fairness. After
// a restart without it, the FlowSchema keeps its conditions.
func TestExemption_Header(t *testing.T) {
	schema := shippedFlowSchema(t)
	schema.Status.Conditions = []flowcontrolv1.FlowSchemaCondition{{Type: flowcontrolv1.FlowSchemaConditionDangling, Status: flowcontrolv1.ConditionFalse}}
	enforces := true
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if enforces {
			w.Header().Set(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID, "uid")
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(schema)
	}))
	t.Cleanup(server.Close)
	var who func(authenticationv1.UserInfo) bool
	x, err := NewExemption(&rest.Config{Host: server.URL}, time.Minute, func(f func(authenticationv1.UserInfo) bool) { who = f })
	require.NoError(t, err)
	for _, enforces = range []bool{true, false, true} {
		x.update(t.Context())
		assert.Equal(t, enforces, who != nil)
	}
}
