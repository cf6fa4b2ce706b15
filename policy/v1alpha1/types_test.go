// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/policy/v1alpha1"
)

// A Go client that leaves optional fields empty does not send them, so that the API server sets the defaults.
func TestBindPolicy_EmptyFieldsAreAbsent(t *testing.T) {
	content, err := json.Marshal(v1alpha1.BindPolicy{Spec: v1alpha1.BindPolicySpec{
		Resources:   []v1alpha1.Resource{{Name: "agents", APIVersion: "v1", Kind: "Pod", OnNode: true}},
		Validations: []v1alpha1.Validation{{Expression: "true"}},
		WaitFor:     []v1alpha1.Wait{{Name: "a", Expression: "true"}},
	}})
	require.NoError(t, err)
	assert.JSONEq(t, `{"metadata": {}, "spec": {
		"resources": [{"name": "agents", "apiVersion": "v1", "kind": "Pod", "onNode": true}],
		"validations": [{"expression": "true"}],
		"waitFor": [{"name": "a", "expression": "true"}]}}`, string(content))
}
