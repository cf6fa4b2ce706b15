// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	prebind "github.com/prebind/prebind/client"
)

// bindingFor requests two devices and up to 20 minutes to prepare the pod.
func bindingFor(pod *corev1.Pod, node string) (*corev1.Binding, error) {
	request := prebind.Request{
		Devices: map[string][]prebind.Device{
			"gpu": {{ID: "GPU-1"}, {ID: "GPU-2", Share: resource.MustParse("0.5")}},
		},
		Require: []string{"device"},
		Timeout: 20 * time.Minute,
	}
	return request.Binding(pod, node)
}

// postOnce posts the Binding without repeats, and returns at most 3 s after the client's rate limiter. The client is
// clientset.CoreV1().RESTClient().
func postOnce(ctx context.Context, client rest.Interface, binding *corev1.Binding) error {
	return client.Post().Namespace(binding.Namespace).Resource("pods").Name(binding.Name).SubResource("binding").
		Body(binding).MaxRetries(0).Timeout(3 * time.Second).Do(ctx).Error()
}

func ExampleRequest() {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "train-0", UID: "5f0c"}}
	binding, err := bindingFor(pod, "gpu-7")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(binding.UID, binding.Annotations)
	// Output: 5f0c map[binder.prebind.dev/require:device binder.prebind.dev/timeout:20m0s device.prebind.dev/gpu:GPU-1,GPU-2:0.5]
}
