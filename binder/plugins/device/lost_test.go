// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

func TestLostRecord_IsRestoredFromPods(t *testing.T) {
	running := podNamed("running", gen.BoundTo("node-a"), gen.Annotation(gpu, "GPU-1:0.7"), gen.Annotation("binder.prebind.dev/attempt", "x"))
	ended := phased(corev1.PodSucceeded)
	gen.Annotation(gpu, "GPU-2")(&ended.ObjectMeta)
	objects := []client.Object{
		running, ended, podNamed("me"),
		podNamed("elsewhere", gen.BoundTo("node-b"), gen.Annotation(gpu, "GPU-2")),
		podNamed("pending", gen.Annotation(gpu, "GPU-2")),
		podNamed("none", gen.BoundTo("node-a")),
		podNamed("locker", gen.BoundTo("node-a"), gen.Annotation(lockIt, "true")),
		podNamed("long", gen.BoundTo("node-a"), gen.Annotation(fpga, "F"), gen.Annotation("binder.prebind.dev/attempt", string(make([]byte, 1<<16)))),
	}
	s := newServer(t, objects...)
	p := replicaOf(s)
	_, err := preFlight(t.Context(), p, bindOf(podNamed("me"), "b", gen.Annotation(gpu, "GPU-1")))
	require.NoError(t, err, "PreFlight first uses the cache")
	err = p.PreBind(t.Context(), bindOf(podNamed("me"), "b", gen.Annotation(gpu, "GPU-1")))
	assert.ErrorContains(t, err, "is held by pod default/running (0.7): requested 1, free 0.3")
	require.NoError(t, prepare(t.Context(), p, bindOf(podNamed("me"), "b", gen.Annotation(gpu, "GPU-1:0.3,GPU-2"))))
	assert.Equal(t, map[string]string{
		"running": "[x: 0.7 of GPU-1 (gpu)] bound", "long": "[: F (fpga)] bound", "me": "[b: 0.3 of GPU-1 (gpu), GPU-2 (gpu)]",
	}, held(s))
	assert.Less(t, len(s.object().Data["long"]), 1000, "a value that is too long for an attempt is dropped")
}

// A tenant can add annotations to a running pod. If the record is then lost, the pod blocks
// the devices that it names, but it takes none from their holders.
func TestLostRecord_ForgedAnnotationsFreeNothing(t *testing.T) {
	s := newServer(t, podNamed("me"),
		podNamed("holder", gen.BoundTo("node-a"), gen.Annotation(gpu, "GPU-1")),
		podNamed("forger", gen.BoundTo("node-a"), gen.Annotation(gpu, "GPU-1,GPU-2")))
	p := replicaOf(s)
	err := prepare(t.Context(), p, bindOf(podNamed("me"), "b", gen.Annotation(gpu, "GPU-1")))
	require.ErrorContains(t, err, "pod default/holder")
	err = prepare(t.Context(), p, bindOf(podNamed("me"), "b", gen.Annotation(gpu, "GPU-2")))
	require.ErrorContains(t, err, "pod default/forger")
	s.delete(podNamed("forger"))
	require.NoError(t, prepare(t.Context(), p, bindOf(podNamed("me"), "b", gen.Annotation(gpu, "GPU-2"))))
	require.Error(t, prepare(t.Context(), p, bindOf(podNamed("me"), "b", gen.Annotation(gpu, "GPU-1"))))
}

// granted returns a bind of the pod web that was granted GPU-1. There is another pod.
func granted(t *testing.T) (*server, *Plugin, *framework.BindContext) {
	t.Helper()
	web := podNamed("web")
	s := newServer(t, web, podNamed("other"))
	p, bc := replicaOf(s), bindOf(web, "a", gen.Annotation(gpu, "GPU-1"))
	require.NoError(t, prepare(t.Context(), p, bc))
	return s, p, bc
}

// The next pass notices the loss. A bind that was already allowed gets its grant back when it is
// confirmed.
func TestLostRecord_DuringABind(t *testing.T) {
	s, p, bc := granted(t)
	require.NoError(t, s.Delete(t.Context(), s.object()))
	verdict, err := preFlight(t.Context(), p, bc)
	require.NoError(t, err)
	assert.NotEmpty(t, verdict.Writes, "the bind is granted the devices again")
	require.NoError(t, p.PreBind(t.Context(), bc))
	assert.Equal(t, map[string]string{"web": "[a: GPU-1 (gpu)]"}, held(s))
	require.NoError(t, s.Delete(t.Context(), s.object()))

	require.NoError(t, prepare(t.Context(), p, bindOf(podNamed("other"), "b", gen.Annotation(gpu, "GPU-2"))))
	s.bindAndConfirm(p, bc)
	assert.Equal(t, map[string]string{"web": "[a: GPU-1 (gpu)] bound", "other": "[b: GPU-2 (gpu)]"}, held(s))
}

// The scheduler has chosen another device, and a replica in mode Audit allowed that bind. Both devices count.
func TestPostBind_BoundWithoutPrebind(t *testing.T) {
	s, p, bc := granted(t)
	s.bind(bc)
	s.change(bc.Pod, func(pod *corev1.Pod) {
		delete(pod.Annotations, framework.AttemptAnnotation)
		pod.Annotations[gpu] = "GPU-2"
	})
	require.NoError(t, s.postBind(p, bc))
	for _, id := range []string{"GPU-1", "GPU-2"} {
		err := prepare(t.Context(), p, bindOf(podNamed("other"), "b", gen.Annotation(gpu, id)))
		assert.ErrorContains(t, err, "web", id)
	}
	marks, err := p.Marks(t.Context())
	require.NoError(t, err)
	assert.Empty(t, marks, "the mark ends")
}

// The engine has read that the pod runs. Then the pod finishes, and another one is granted its device. PostBind must
// not restore the grant.
func TestPostBind_RestoresNothingForAPodThatHasEnded(t *testing.T) {
	s, p, bc := granted(t)
	s.bind(bc)
	read, _ := fakeapi.Get(s.api, bc.Pod)
	s.finish(bc.Pod)
	require.NoError(t, prepare(t.Context(), p, bindOf(podNamed("other"), "b", gen.Annotation(gpu, "GPU-1"))))
	require.NoError(t, p.PostBind(t.Context(), bc.Mark(), read))
	assert.Equal(t, map[string]string{"other": "[b: GPU-1 (gpu)]"}, held(s))
}
