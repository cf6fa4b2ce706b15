// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/prebind/prebind/test/gen"
)

// testForgedMarks checks that a claim of a bound pod keeps its reservation and its devices when a user with the role edit writes marks
// to it.
func testForgedMarks(t *testing.T, w *world) {
	t.Run("reserved by Prebind", func(t *testing.T) { testForgedReservation(t, w) })
	t.Run("reserved for a PodGroup", func(t *testing.T) { testForgedGroup(t, w) })
}

func testForgedReservation(t *testing.T, w *world) {
	t.Parallel()
	b := newBench(t, w, nil)
	b.resourceClaim("gpu", gen.RequestsDevices("some.example.com", 1), gen.AllocatedFor("node-2", "some.example.com", gen.Device("gpu-0")))
	b.podWith(byHand, gen.UsesResourceClaim("gpu"))
	require.NoError(t, b.bindByHand(b.binding("node-2")))
	pod := b.untilBound()
	b.untilUnmarked("gpu")

	attempt := pod.Annotations[attemptKey]
	require.NotEmpty(t, attempt)

	eve := b.editor("eve")
	forged := `{"pod":"no-such-pod","node":"x"}`
	for _, marks := range []map[string]string{
		// The attempt that reserved the claim.
		{markPrefix + string(pod.UID) + "." + attempt: forged},
		// A mark of a replica that never existed, and a mark for a pod that never existed.
		{markPrefix + string(pod.UID) + ".nosuchid-1": forged, markPrefix + "0e615ce3-0000-0000-0000-0." + attempt: forged},
	} {
		b.annotateAs(eve, "gpu", marks)
		b.untilUnmarked("gpu")
		b.assertReserved("gpu", pod)
	}

	// A client that updates a claim can rewrite its managed fields, so they do not prove which client reserved the claim.
	b.rename(eve, "gpu", "somebody")
	assert.False(t, slices.ContainsFunc(b.getResourceClaim("gpu").ManagedFields, func(m metav1.ManagedFieldsEntry) bool {
		return m.Manager == "prebind-resource-claims"
	}), "the API server keeps the managed fields of the client")
}

// rename changes the manager of all managed fields of the claim as the user.
func (b *bench) rename(user kubernetes.Interface, name, manager string) {
	b.t.Helper()
	err := retry.OnError(retry.DefaultRetry, func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsForbidden(err) }, func() error {
		claims := user.ResourceV1().ResourceClaims(b.ns)
		claim, err := claims.Get(b.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for i := range claim.ManagedFields {
			claim.ManagedFields[i].Manager = manager
		}
		_, err = claims.Update(b.t.Context(), claim, metav1.UpdateOptions{})
		return err
	})
	require.NoError(b.t, err)
}

// A mark with the UID of a PodGroup does not free the group's reservation.
func testForgedGroup(t *testing.T, w *world) {
	t.Parallel()
	b := newBench(t, w, nil)
	group := types.UID("0e615ce3-1111-0000-0000-000000000000")
	b.resourceClaim("gpu", gen.RequestsDevices("some.example.com", 1), gen.AllocatedFor("node-3", "some.example.com", gen.Device("gpu-0")),
		gen.ReservedForOther("scheduling.k8s.io", "podgroups", "team", group))
	eve := b.editor("eve")
	b.rename(eve, "gpu", "prebind-resource-claims")
	b.annotateAs(eve, "gpu", map[string]string{markPrefix + string(group) + ".nosuchid-1": `{"pod":"team","node":"x"}`})
	claim := b.untilResourceClaim("gpu", "unmarked", unmarked)
	assert.Equal(t, []resourcev1.ResourceClaimConsumerReference{{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "team", UID: group}}, claim.Status.ReservedFor)
}

// editor creates a user with the built-in role edit in the namespace of the test.
func (b *bench) editor(user string) kubernetes.Interface {
	b.t.Helper()
	_, err := b.client.RbacV1().RoleBindings(b.ns).Create(b.t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{})
	require.NoError(b.t, err)
	config := b.cluster.Config()
	config.Impersonate.UserName = user
	client, err := kubernetes.NewForConfig(config)
	require.NoError(b.t, err)
	return client
}

// annotateAs writes the annotations to the claim as the user.
func (b *bench) annotateAs(user kubernetes.Interface, claim string, annotations map[string]string) {
	b.t.Helper()
	err := retry.OnError(retry.DefaultRetry, apierrors.IsForbidden, func() error { // The API server applies RBAC changes with a delay.
		patch := ""
		for key, value := range annotations {
			if patch != "" {
				patch += ","
			}
			patch += fmt.Sprintf("%q:%q", key, value)
		}
		_, err := user.ResourceV1().ResourceClaims(b.ns).Patch(b.t.Context(), claim, types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{`+patch+`}}}`), metav1.PatchOptions{})
		return err
	})
	require.NoError(b.t, err)
}
