// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

// A bind costs the grant, one read of the bound pod by the engine, and the confirmation. The first bind of a node also makes the record.
func TestBind_Requests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second, node := podNamed("first", gen.Annotation(gpu, "GPU-1")), podNamed("second", gen.Annotation(gpu, "GPU-2")), gen.Node("node-a")
		c := frameworktest.New(t, Registration(), nil, first, second, node)
		for _, pod := range []*corev1.Pod{first, second} {
			c.Forget()
			require.Nil(t, c.Post(t.Context(), pod, node.Name).Err)
			fakeapi.Change(c.Server, pod, "", func(p *corev1.Pod) { p.Spec.NodeName = node.Name })
			synctest.Wait()
		}
		assert.Len(t, c.Writes(), 2, "requests that write: %v", c.Writes())
		assert.Equal(t, 1, c.Reads(), "requests that read")
		for _, record := range fakeapi.All(c.Server, &corev1.ConfigMap{}) {
			assert.Equal(t, confirmedKey, unconfirmed(record), "the grants are confirmed: %v", record.Data)
		}
	})
}
