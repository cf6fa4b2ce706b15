// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/internal/claimed"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

// forged adds a mark that a tenant wrote.
func forged(uid types.UID, attempt, pod, node string) claimOption {
	return meta1(gen.Annotation(markKey(uid, attempt), fmt.Sprintf(`{"pod":%q,"node":%q}`, pod, node)))
}

// sweepAll rolls back all marks that the plugin lists, as the sweep does for pods that do
// not exist.
func sweepAll(t *testing.T, r *replica) {
	t.Helper()
	marks, err := r.Marks(t.Context())
	require.NoError(t, err)
	for _, m := range marks {
		require.NoError(t, r.PreBindRollBack(t.Context(), m))
	}
}

// A tenant writes marks after Prebind has reserved a claim and its pod is bound.
func TestForgedMark_KeepsWhatABoundPodUses(t *testing.T) {
	cases := map[string]struct {
		reason string
		forge  claimOption
	}{
		"NoSuchPod":     {reason: "the name in the mark does not decide", forge: forged("pod-web", "here-1", "no-such-pod", "node-a")},
		"Replayed":      {reason: "the attempt's own mark comes back after PostBind", forge: forged("pod-web", "here-1", "web", "node-a")},
		"OtherNode":     {reason: "the pod is bound to another node", forge: forged("pod-web", "here-1", "web", "node-b")},
		"NoSuchReplica": {reason: "the replica does not exist", forge: forged("pod-web", "nosuchid-1", "no-such-pod", "x")},
		"OtherUID":      {reason: "the claim is not reserved for the pod of the mark", forge: forged("pod-db", "here-1", "db", "node-a")},
		"ManagedFields": {reason: "clients can write managedFields", forge: func(c *resourcev1.ResourceClaim) {
			forged("pod-web", "here-1", "no-such-pod", "x")(c)
			c.ManagedFields = []metav1.ManagedFieldsEntry{managed(string(fieldOwner), "web")}
		}},
		"Junk": {reason: "an invalid mark is ignored", forge: meta1(gen.Annotation(markKey("pod-web", "here-1"), "{"))},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s, pod, r, _ := setup(t)
			bc := bind(pod, "node-a", "here-1")
			require.NoError(t, r.PreBind(t.Context(), bc))
			s.Put(bound(pod, "node-a"))
			require.NoError(t, r.PostBind(t.Context(), bc.Mark(), nil))
			s.change("kubectl", tc.forge)
			sweepAll(t, r)
			assert.Equal(t, []string{"web"}, users(s.claim()), tc.reason)
			assert.Equal(t, []string{"gpu-0"}, devices(s.claim()), tc.reason)
			assert.Empty(t, unsettled(s.claim()), "the sweep removes the mark")
		})
	}
}

func TestForgedMark_KeepsOtherReservations(t *testing.T) {
	group := types.UID("group-batch")
	cases := map[string]struct {
		reason string
		claim  []claimOption
		// pod is the name in the mark.
		pod  string
		want []string
	}{
		"PodGroup": {
			reason: "schedulers reserve claims for PodGroups",
			claim:  []claimOption{reservedToGroup("batch"), forged(group, "nosuchid-1", "batch", "x")},
			pod:    "batch", want: []string{"batch"},
		},
		"StaleName": {
			reason: "the sweep has decided about another pod", pod: "no-such-pod", want: []string{"web"},
			claim: []claimOption{reservedTo("web"), forged("pod-web", "nosuchid-1", "no-such-pod", "x")},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newAPI(gen.Node("node-a"), thePod(uses("c")), theClaim("c", append([]claimOption{allocated("node-a", "gpu-0")}, tc.claim...)...))
			r := newReplica(t, s)
			for _, m := range unsettled(s.claim()) {
				m.Pod.Name = tc.pod
				require.NoError(t, r.PreBindRollBack(t.Context(), m))
			}
			assert.Equal(t, tc.want, users(s.claim()), tc.reason)
			assert.NotNil(t, s.claim().Status.Allocation, tc.reason)
		})
	}
}

// A tenant writes a mark for a pod that refers to many claims, which need not exist. The roll-back reads each claim of a pod for which Prebind
// can have written marks.
func TestForgedMark_BoundsTheReads(t *testing.T) {
	many := func(n int) []string {
		names := make([]string, n)
		for i := range names {
			names[i] = fmt.Sprintf("no-such-claim-%d", i)
		}
		return names
	}
	cases := map[string]struct {
		reason string
		refs   int
		uid    types.UID
		want   int
	}{
		"Maximum":  {reason: "the cache can lack the marks of the last PreBind", refs: claimed.MaxClaims, uid: "pod-web", want: claimed.MaxClaims},
		"TooMany":  {reason: "the plugin rejects the pod before it writes", refs: claimed.MaxClaims + 1, uid: "pod-web"},
		"Replaced": {reason: "the pod of the mark is gone, and its claims need not be those of the pod with its name", refs: 1, uid: "pod-earlier"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pod := thePod(uses(many(tc.refs)...))
			s := newAPI(gen.Node("node-a"), pod, theClaim("c", allocated("node-a", "gpu-0"), forged(tc.uid, "nosuchid-1", "web", "node-a")))
			r := newReplica(t, s)
			if tc.refs > claimed.MaxClaims {
				err := r.PreBind(t.Context(), bind(pod, "node-a", "here-1"))
				require.True(t, frameworktest.IsKind(err, framework.KindRefuse), "%v", err)
				require.Empty(t, s.Writes(), tc.reason)
			}
			reads := 0
			r.conn.Before = func(c fakeapi.Call) error {
				if c.Verb == "get" && strings.HasPrefix(c.Key.Name, "no-such-claim") {
					reads++
				}
				return nil
			}
			sweepAll(t, r)
			assert.Equal(t, tc.want, reads, tc.reason)
			assert.Empty(t, unsettled(s.claim()), "the sweep removes the mark")
		})
	}
}

func TestRollBack_GivesUpOnAClaimThatKeepsChanging(t *testing.T) {
	s, pod, r, _ := setup(t)
	bc := bind(pod, "node-a", "here-1")
	require.NoError(t, r.PreBind(t.Context(), bc))
	n := 0
	r.conn.Before = func(w fakeapi.Call) error {
		if w.Verb != "get" {
			n++
			s.change("kubectl", meta1(gen.Label("n", fmt.Sprint(n))))
		}
		return nil
	}
	require.Error(t, r.PreBindRollBack(t.Context(), bc.Mark()))
	assert.LessOrEqual(t, n, releaseConflicts+1)
	r.conn.Before = nil
	require.NoError(t, r.PreBindRollBack(t.Context(), bc.Mark()))
	assert.Empty(t, users(s.claim()))
}

// Of the marks on a claim, each sweep settles a few. Those of pods with a reservation come first.
func TestSweep_SettlesAFewMarksOfAClaim(t *testing.T) {
	const many = 660 // They have 49 KiB.
	s, pod, r, _ := setup(t, reservedTo("db"), forged("pod-db", "nosuchid-1", "no-such-pod", "x"), func(c *resourcev1.ResourceClaim) {
		for i := range many {
			forged(types.UID(fmt.Sprintf("a-%d", i)), "nosuchid-1", "no-such-pod", "x")(c)
		}
	})
	err := r.PreBind(t.Context(), bind(pod, "node-a", "here-1"))
	require.True(t, frameworktest.IsKind(err, framework.KindWait), "the plugin adds no mark to a claim with many marks: %v", err)
	assert.ErrorContains(t, err, "room for another annotation")
	marks, err := r.Marks(t.Context())
	require.NoError(t, err)
	assert.Len(t, marks, maxListed)
	assert.Equal(t, "db", marks[0].Pod.Name, "the name is from the reservation")
	sweepAll(t, r)
	assert.Len(t, s.claim().Annotations, many+1-maxListed)
	assert.Equal(t, []string{"db"}, users(s.claim()), "kube-controller-manager removes the reservation of a pod that does not exist")
	bc := bind(pod, "node-a", "here-1")
	require.NoError(t, r.PreBind(t.Context(), bc))
	marked, err := r.marked(t.Context(), bc.Mark())
	require.NoError(t, err)
	assert.Equal(t, []string{"c"}, marked, "the cache holds more than PreBind adds")
}

func TestRoomForAMark(t *testing.T) {
	s, pod, r, _ := setup(t, meta1(gen.Annotation("example.com/large", strings.Repeat("x", 256*1024-30))))
	err := r.PreBind(t.Context(), bind(pod, "node-a", "here-1"))
	require.True(t, frameworktest.IsKind(err, framework.KindRefuse), "%v", err)
	assert.ErrorContains(t, err, "no room")
	assert.Empty(t, s.Writes())
}

// A tenant removes the mark of an attempt. The reservation stays until the pod is bound or
// gone, and affects no other pod.
func TestMark_RemovedByATenant(t *testing.T) {
	s, pod, r, _ := setup(t)
	bc := bind(pod, "node-a", "here-1")
	require.NoError(t, r.PreBind(t.Context(), bc))
	s.change("kubectl", func(c *resourcev1.ResourceClaim) { c.Annotations = nil })
	require.NoError(t, r.PreBindRollBack(t.Context(), bc.Mark()))
	assert.Equal(t, []string{"web"}, users(s.claim()))
}

// stripping removes the annotations of each claim, like a mutating webhook.
type stripping struct {
	client.Writer
	s      *apiServer
	writes int
}

func (w *stripping) Patch(ctx context.Context, o client.Object, p client.Patch, options ...client.PatchOption) error {
	if w.writes++; w.writes > 100 {
		return errDown
	}
	err := w.Writer.Patch(ctx, o, p, options...)
	w.s.change("webhook", func(c *resourcev1.ResourceClaim) { c.Annotations = nil })
	o.SetAnnotations(nil)
	return err
}

func TestMark_RemovedByAWebhook(t *testing.T) {
	s, pod, r, _ := setup(t)
	webhook := &stripping{Writer: r.conn, s: s}
	r.h.Writer = webhook
	err := r.PreBind(t.Context(), bind(pod, "node-a", "here-1"))
	require.True(t, frameworktest.IsKind(err, framework.KindWait), "the plugin stops after some writes: %v", err)
	assert.ErrorContains(t, err, "webhook removes")
	assert.Equal(t, takeWrites, webhook.writes)
	assert.Empty(t, users(s.claim()))
}
