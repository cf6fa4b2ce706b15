// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// exempt is a namespace in which the API server binds pods without Prebind.
var exempt = map[string]string{"prebind.dev/exempt": ""}

// The API server stores invalid metadata of a Binding, and then refuses every update of that pod, including updates of the kubelet.
// Prebind denies such a Binding.
func TestMetadataThatNoPodSurvives(t *testing.T) {
	t.Parallel()
	const blob = "example.com/blob"
	kib := func(n int) string { return strings.Repeat("x", n<<10) }
	tests := map[string]struct {
		pod     []gen.PodOption
		binding gen.BindingOption
		says    []string
	}{
		"invalid annotation key": {
			binding: gen.Annotation("bad key", "x"),
			says:    []string{"metadata.annotations", `"bad key"`, "name part must consist of"},
		},
		"annotations of pod and Binding, of 300 KiB together": {
			pod:     []gen.PodOption{gen.Annotation("example.com/pods", kib(200))},
			binding: gen.Annotation(blob, kib(100)),
			says:    []string{"metadata.annotations", "Too long", "262144"},
		},
		"invalid label value": {
			binding: gen.Label("example.com/rack", "in the cellar"),
			says:    []string{"metadata.labels", `"in the cellar"`},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, shared, nil)
			created := b.podWith(byHand, tc.pod...)
			b.assertInvalid(b.bindByHand(b.binding("node-1", tc.binding)), tc.says...)
			pod := b.until("still unbound", notBound)
			assert.Equal(t, created.ResourceVersion, pod.ResourceVersion, "the API server should not store the metadata")
			require.NoError(t, b.patchLabels())

			require.NoError(t, b.bindByHand(b.binding("node-1")), "without it")
			b.assertTopology(b.untilBound())
			assert.NoError(t, b.patchStatus("pod"))
		})
	}
}

// patchLabels updates the labels of the pod.
func (b *bench) patchLabels() error {
	_, err := b.client.CoreV1().Pods(b.ns).Patch(b.t.Context(), "pod", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"example.com/updated":"yes"}}}`), metav1.PatchOptions{})
	return err
}

// patchStatus reports the pod as ready, like its kubelet.
func (b *bench) patchStatus(name string) error {
	_, err := b.client.CoreV1().Pods(b.ns).Patch(b.t.Context(), name, types.StrategicMergePatchType,
		[]byte(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`), metav1.PatchOptions{}, "status")
	return err
}

// assertInvalid checks that the bind was refused as invalid, with all of the words.
func (b *bench) assertInvalid(err error, words ...string) {
	b.t.Helper()
	require.True(b.t, apierrors.IsInvalid(err), "the Binding should be refused as invalid: %v (%s)", err, apierrors.ReasonForError(err))
	for _, w := range append(words, "invalid metadata after the merge") {
		assert.ErrorContains(b.t, err, w)
	}
	assert.Equal(b.t, []string{"invalid"}, b.decisions())
}

// With every mutator and plugin off, Prebind does not change the pod.
func testPassesThrough(t *testing.T, w *world, off *variant) {

	t.Run("binds", func(t *testing.T) {
		options := []gen.PodOption{gen.Label("example.com/app", "web"), gen.Annotation("example.com/owner", "me"), gen.Annotation("topology.prebind.dev/rack", "forged")}
		binding := []gen.BindingOption{
			gen.Label("example.com/by", "hand"), gen.Annotation("example.com/chosen-by", "hand"), gen.Annotation("topology.prebind.dev/zone", "forged"),
			// A disabled plugin reads no annotations.
			gen.Annotation("node-state.prebind.dev/expect", "there=is-no-such-label"), gen.Annotation("device.prebind.dev/gpu", "not valid: ;"),
		}
		binds := map[string]struct {
			scheduler string
			bind      func(b *bench) error
		}{
			"kube-scheduler": {scheduler: cluster.DefaultScheduler, bind: func(*bench) error { return nil }},
			"by hand":        {scheduler: byHand, bind: func(b *bench) error { return b.bindByHand(b.binding("node-3", binding...)) }},
			"by hand, legacy path": {scheduler: byHand, bind: func(b *bench) error {
				return b.client.CoreV1().RESTClient().Post().Namespace(b.ns).Resource("bindings").
					Body(b.binding("node-3", binding...)).Do(b.t.Context()).Error()
			}},
		}
		for name, tc := range binds {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				bound := func(labels map[string]string) (*bench, *corev1.Pod) {
					b := newBench(t, w, labels)
					b.allow("node-3")
					b.podWith(tc.scheduler, append(options, b.steered())...)
					require.NoError(t, tc.bind(b))
					return b, b.untilBound()
				}
				b, with := bound(off.labels())
				_, without := bound(exempt)
				assert.Equal(t, without.Annotations, with.Annotations)
				assert.Equal(t, without.Labels, with.Labels)
				assert.Equal(t, "forged", with.Annotations[rackPodLabel], "no mutator owns the key")
				assert.Equal(t, []string{"passed-through"}, b.decisions())
				assert.NotContains(t, with.Annotations, attemptKey)
			})
		}
	})
}
