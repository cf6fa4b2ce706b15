// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPolicyFor(t *testing.T) {
	s := &Settings{
		Mode: ModeEnforce, PreBindTimeout: 10 * time.Minute, MaxPreBindTimeout: 30 * time.Minute,
		Namespaces: []NamespaceRule{
			{Names: []string{"shop"}, Mode: ModeOff},
			{Names: []string{"shop", "batch-*"}, Mode: ModeAudit, PreBindTimeout: metav1.Duration{Duration: time.Hour}},
			{Names: []string{"quick"}, MaxPreBindTimeout: metav1.Duration{Duration: time.Minute}},
			{Names: []string{"*-test"}, Mode: ModeEnforce, PreBindTimeout: metav1.Duration{Duration: time.Minute}, MaxPreBindTimeout: metav1.Duration{Duration: 2 * time.Minute}},
		},
	}
	cases := map[string]struct {
		reason, namespace string
		want              policy
	}{
		"General":  {reason: "no rule matches", namespace: "web", want: policy{ModeEnforce, 10 * time.Minute, 30 * time.Minute}},
		"First":    {reason: "only the first rule applies", namespace: "shop", want: policy{ModeOff, 10 * time.Minute, 30 * time.Minute}},
		"Pattern":  {reason: "a timeout above the limit raises the limit", namespace: "batch-7", want: policy{ModeAudit, time.Hour, time.Hour}},
		"NoMatch":  {reason: "a pattern matches the whole name", namespace: "my-batch-7", want: policy{ModeEnforce, 10 * time.Minute, 30 * time.Minute}},
		"Limit":    {reason: "a lower limit lowers the timeout", namespace: "quick", want: policy{ModeEnforce, time.Minute, time.Minute}},
		"AllThree": {reason: "a rule can have all fields", namespace: "a-test", want: policy{ModeEnforce, time.Minute, 2 * time.Minute}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, s.policyFor(tc.namespace), tc.reason)
		})
	}
}
