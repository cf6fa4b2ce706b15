// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package golden

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/plugins/device"
	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/webhook"
)

// clientData is the test data of the module client. That module cannot import this one, and this one cannot import that one.
// Both test the files, so that they agree.
var clientData = filepath.Join("..", "..", "client", "testdata")

// TestClient_Contract checks the values that the module client has a copy of.
func TestClient_Contract(t *testing.T) {
	prefix := func(plugin string) string { return plugin + "." + v1alpha1.Domain + "/" }
	compareWithClient(t, "contract.json", map[string]string{
		"WebhookName":            webhook.Name,
		"DeviceAnnotationPrefix": prefix(device.Name),
		"CausePlugin":            string(webhook.CausePlugin),
		"CauseObject":            string(webhook.CauseObject),
		"CauseField":             string(webhook.CauseField),
		"Waiting":                string(framework.KindWait),
		"Refused":                string(framework.KindRefuse),
		"Stale":                  string(framework.KindStale),
		"Invalid":                string(framework.KindInvalid),
		"Internal":               string(framework.KindInternal),
	})
}

// denial is a denial as a client of the API server receives it, with Prebind's own decision.
type denial struct {
	Decision string        `json:"decision"`
	Status   metav1.Status `json:"status"`
}

// TestClient_Denials checks the denials with which the module client is tested. They are all denials of this package.
func TestClient_Denials(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "*.answer.yaml"))
	require.NoError(t, err)
	denials := map[string]denial{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		var answer struct {
			Response struct {
				Allowed          bool              `json:"allowed"`
				AuditAnnotations map[string]string `json:"auditAnnotations"`
				Status           metav1.Status     `json:"status"`
			} `json:"response"`
		}
		require.NoError(t, yaml.Unmarshal(content, &answer))
		if r := answer.Response; !r.Allowed {
			// The API server adds this; see ToStatusErr in k8s.io/apiserver. An end-to-end test checks the prefix.
			r.Status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
			r.Status.Message = fmt.Sprintf("admission webhook %q denied the request: %s", webhook.Name, r.Status.Message)
			denials[strings.TrimSuffix(filepath.Base(file), ".answer.yaml")] = denial{r.AuditAnnotations["decision"], r.Status}
		}
	}
	compareWithClient(t, "denials.json", denials)
}

// compareWithClient compares a value with a file of the module client.
func compareWithClient(t *testing.T, name string, value any) {
	t.Helper()
	var got bytes.Buffer
	encoder := json.NewEncoder(&got)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	require.NoError(t, encoder.Encode(value))
	file := filepath.Join(clientData, name)
	if *update {
		require.NoError(t, os.WriteFile(file, got.Bytes(), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, string(want), got.String(), "change the module client, and run 'go test ./test/golden -update'")
}

// TestClient_Requests posts Bindings with the annotations that the module client builds.
func TestClient_Requests(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(clientData, "requests.json"))
	require.NoError(t, err)
	var cases []struct {
		Name        string            `json:"name"`
		Objects     string            `json:"objects"`
		Annotations map[string]string `json:"annotations"`
		// Grants are the shares by resource and device that Prebind grants.
		Grants map[string]map[string]string `json:"grants"`
		// Denial is part of the message if Prebind denies the Binding.
		Denial string `json:"denial"`
	}
	require.NoError(t, json.Unmarshal(content, &cases))
	require.NotEmpty(t, cases)
	for _, tc := range cases {
		t.Run(tc.Name, func(t *testing.T) {
			objects, binding := read(t, tc.Objects)
			binding.Annotations = tc.Annotations
			synctest.Test(t, func(t *testing.T) {
				p := newPrebind(t, setup{plugins: []on{nodeState, devices}}, objects)
				response := p.serve(t, reviewOf(binding, false))
				require.Equal(t, http.StatusOK, response.Code)
				var review admissionv1.AdmissionReview
				require.NoError(t, json.Unmarshal(response.Body.Bytes(), &review))
				if tc.Denial == "" {
					assert.True(t, review.Response.Allowed, "%v", review.Response.Result)
				} else {
					assert.Contains(t, review.Response.Result.Message, tc.Denial)
				}
				assert.Equal(t, tc.Grants, grants(t, p))
				p.stop(t)
			})
		})
	}
}

// grants returns the shares that the pod web holds in the record of the node, by resource and device.
func grants(t *testing.T, p *prebind) map[string]map[string]string {
	t.Helper()
	var records corev1.ConfigMapList
	require.NoError(t, p.client.List(t.Context(), &records))
	for _, record := range records.Items {
		var entry struct {
			Grants []struct {
				Devices map[string]map[string]string `json:"devices"`
			} `json:"grants"`
		}
		if text := record.Data["pod-1"]; text != "" {
			require.NoError(t, json.Unmarshal([]byte(text), &entry))
			require.Len(t, entry.Grants, 1)
			return entry.Grants[0].Devices
		}
	}
	return nil
}
