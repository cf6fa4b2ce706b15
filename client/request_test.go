// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestRequest_Annotations builds the annotations that Prebind's golden tests post.
func TestRequest_Annotations(t *testing.T) {
	var cases []struct {
		Name        string            `json:"name"`
		Request     Request           `json:"request"`
		Annotations map[string]string `json:"annotations"`
	}
	Load(t, "requests.json", &cases)
	require.NotEmpty(t, cases)
	for _, tc := range cases {
		t.Run(tc.Name, func(t *testing.T) {
			got, err := tc.Request.Annotations()
			require.NoError(t, err)
			assert.Equal(t, tc.Annotations, got)
		})
	}
}

func TestRequest_Invalid(t *testing.T) {
	gpus := func(devices ...Device) Request { return Request{Devices: map[string][]Device{"gpu": devices}} }
	share := func(s string) Request { return gpus(Device{ID: "GPU-1", Share: resource.MustParse(s)}) }
	many, long := make([]Device, 257), make([]Device, 20)
	for i := range many {
		many[i].ID = fmt.Sprint(i)
	}
	for i := range long {
		long[i].ID = fmt.Sprintf("%0253d", i)
	}
	for name, tc := range map[string]struct {
		reason  string
		request Request
		says    string
	}{
		"NoDevice":       {reason: "an empty list has no meaning", request: gpus(), says: "gpu: a resource needs at least one device"},
		"IDWithComma":    {reason: "commas separate devices", request: gpus(Device{ID: "a,b"}), says: "invalid device ID"},
		"IDWithSpace":    {reason: "Prebind removes spaces around an ID", request: gpus(Device{ID: "a "}), says: "invalid device ID"},
		"LongID":         {reason: "records have a limit", request: gpus(Device{ID: strings.Repeat("a", 254)}), says: "invalid device ID"},
		"IDLikeTheLock":  {reason: "Prebind rejects it because it looks like a value of the lock", request: gpus(Device{ID: "true"}), says: "invalid device ID"},
		"Twice":          {reason: "the sum of the shares would be ambiguous", request: gpus(Device{ID: "a"}, Device{ID: "a"}), says: `device "a" is listed twice`},
		"ShareOverOne":   {reason: "a device has one whole", request: share("1.1"), says: "share 1100m: must be more than 0"},
		"SmallShare":     {reason: "Prebind counts in millionths", request: share("100n"), says: "a multiple of 0.000001"},
		"TooManyDevices": {reason: "records have a limit", request: gpus(many...), says: "at most 256, got 257"},
		"TooMuchText":    {reason: "records have a limit", request: gpus(long...), says: "at most 4096 bytes"},
		"LockAsResource": {reason: "the key is not a resource", request: Request{Devices: map[string][]Device{"node-lock": {{ID: "a"}}}}, says: "set NodeLock"},
		"BadResource":    {reason: "the key of the annotation would be invalid", request: Request{Devices: map[string][]Device{"a b": {{ID: "a"}}}}, says: `"a b": invalid name of a resource`},
		"BadPlugin":      {reason: "commas separate plugins", request: Request{Require: []string{"a,b"}}, says: `"a,b": invalid name of a plugin`},
		"Timeout":        {reason: "a budget is positive", request: Request{Timeout: -time.Second}, says: "must be positive, got -1s"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tc.request.Binding(&corev1.Pod{}, "node-a")
			assert.ErrorContains(t, err, tc.says, tc.reason)
		})
	}
}

func TestRequest_Binding(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "pod-1", Annotations: map[string]string{"a": "b"}}}
	b, err := Request{NodeLock: true}.Binding(pod, "node-a")
	require.NoError(t, err)
	assert.Equal(t, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "pod-1", Annotations: map[string]string{NodeLockAnnotation: "true"}},
		Target:     corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "node-a"},
	}, b, "the Binding names the pod that the scheduler saw, and does not repeat its annotations")
}
