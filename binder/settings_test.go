// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/internal/configuration"
)

func TestSettings_In(t *testing.T) {
	s := Settings{
		Mode: ModeEnforce, Hold: 25 * time.Second, PreBindTimeout: 10 * time.Minute, MaxPreBindTimeout: 30 * time.Minute,
		Namespaces: []configuration.NamespaceRule{
			{Names: []string{"shop"}, Mode: ModeOff},
			{Names: []string{"shop", "batch-*"}, Mode: ModeAudit, PreBindTimeout: metav1.Duration{Duration: time.Hour}},
			{Names: []string{"workers"}, RejectAfter: metav1.Duration{Duration: 2 * time.Second}},
			{Names: []string{"quick"}, MaxPreBindTimeout: metav1.Duration{Duration: time.Minute}},
			{Names: []string{"*-test"}, Mode: ModeEnforce, PreBindTimeout: metav1.Duration{Duration: time.Minute}, MaxPreBindTimeout: metav1.Duration{Duration: 2 * time.Minute}},
		},
	}
	cases := map[string]struct {
		reason, namespace string
		want              Settings
	}{
		"First":    {reason: "only the first rule applies", namespace: "shop", want: Settings{Mode: ModeOff, Hold: 25 * time.Second, PreBindTimeout: 10 * time.Minute, MaxPreBindTimeout: 30 * time.Minute}},
		"Pattern":  {reason: "a timeout above the limit raises the limit", namespace: "batch-7", want: Settings{Mode: ModeAudit, Hold: 25 * time.Second, PreBindTimeout: time.Hour, MaxPreBindTimeout: time.Hour}},
		"NoMatch":  {reason: "a pattern matches the whole name", namespace: "my-batch-7", want: Settings{Mode: ModeEnforce, Hold: 25 * time.Second, PreBindTimeout: 10 * time.Minute, MaxPreBindTimeout: 30 * time.Minute}},
		"Limit":    {reason: "a lower limit lowers the timeout", namespace: "quick", want: Settings{Mode: ModeEnforce, Hold: 25 * time.Second, PreBindTimeout: time.Minute, MaxPreBindTimeout: time.Minute}},
		"Reject":   {reason: "a call is held for the shorter time", namespace: "workers", want: Settings{Mode: ModeEnforce, Hold: 2 * time.Second, RejectWaits: true, PreBindTimeout: 10 * time.Minute, MaxPreBindTimeout: 30 * time.Minute}},
		"AllThree": {reason: "a rule can have all fields", namespace: "a-test", want: Settings{Mode: ModeEnforce, Hold: 25 * time.Second, PreBindTimeout: time.Minute, MaxPreBindTimeout: 2 * time.Minute}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tc.want.Namespaces = s.Namespaces
			assert.Equal(t, tc.want, s.in(tc.namespace), tc.reason)
		})
	}
}
