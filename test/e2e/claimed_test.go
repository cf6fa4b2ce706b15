// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// installDevices publishes n devices in the pool of the node, like a driver. The names start with gpu-0. The DeviceClass has the
// name of the driver.
func (w *world) installDevices(t *testing.T, driver, node string, n int) {
	t.Helper()
	class := &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: driver},
		Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{
			CEL: &resourcev1.CELDeviceSelector{Expression: `device.driver == "` + driver + `"`},
		}}},
	}
	_, err := w.client.ResourceV1().DeviceClasses().Create(t.Context(), class, metav1.CreateOptions{})
	require.NoError(t, err)
	slice := &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: node + "-" + driver},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: driver, NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
		},
	}
	for i := range n {
		slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{Name: "gpu-" + strconv.Itoa(i)})
	}
	_, err = w.client.ResourceV1().ResourceSlices().Create(t.Context(), slice, metav1.CreateOptions{})
	require.NoError(t, err)
}
