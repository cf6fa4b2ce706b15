// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/internal/ledger"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

// forOnePod returns the bound ReadWriteOncePod claim data.
func forOnePod() *corev1.PersistentVolumeClaim {
	return theClaim(gen.AccessModes(corev1.ReadWriteOncePod), gen.BoundToVolume("pv"))
}

// sharer returns a pod with the claim data.
func sharer(name string, options ...gen.PodOption) *corev1.Pod {
	return gen.Pod(name, append([]gen.PodOption{gen.UID(types.UID(name)), gen.UsesClaim("data")}, options...)...)
}

func ended(pod *corev1.Pod, phase corev1.PodPhase) *corev1.Pod {
	pod.Status.Phase = phase
	return pod
}

// onePod returns a world with a bound ReadWriteOncePod claim.
func onePod(more ...client.Object) *world {
	return newWorld(append(more, theNode(), forOnePod(), volumeNamed("pv", gen.ClaimRef(theClaim())))...)
}

// records returns the ConfigMaps of the ledger.
func (w *world) records() []*corev1.ConfigMap { return fakeapi.All(w.server, &corev1.ConfigMap{}) }

func TestExclusive(t *testing.T) {
	on := gen.BoundTo("node-b")
	cases := map[string]struct {
		reason string
		claim  *corev1.PersistentVolumeClaim
		others []client.Object
		says   string
		// free means that the bind writes nothing and lists no pods.
		free bool
	}{
		"NotExclusive": {reason: "a claim with another access mode needs no list of pods", claim: theClaim(gen.BoundToVolume("pv")), others: []client.Object{sharer("a", on)}, free: true},
		"Unused":       {reason: "no other pod uses the claim", claim: forOnePod()},
		"Used":         {reason: "two pods would write to one volume", claim: forOnePod(), others: []client.Object{sharer("a", on)}, says: "pod a on node node-b"},
		"UsedOnManyPages": {
			reason: "the plugin reads all pages of the list", claim: forOnePod(), says: "pod e on",
			others: []client.Object{gen.Pod("a", on), gen.Pod("b", on), gen.Pod("c", on), gen.Pod("d", on), sharer("e", on)},
		},
		"UsedByTerminating": {reason: "a terminating pod still uses the claim", claim: forOnePod(), others: []client.Object{sharer("a", on, gen.Terminating())}, says: "pod a"},
		"Succeeded":         {reason: "the pod has ended", claim: forOnePod(), others: []client.Object{ended(sharer("a", on), corev1.PodSucceeded)}},
		"Pending":           {reason: "a pod without a node does not use the claim", claim: forOnePod(), others: []client.Object{sharer("a")}},
		"OtherNamespace":    {reason: "the pod uses a claim in another namespace", claim: forOnePod(), others: []client.Object{sharer("a", on, gen.InNamespace("other"))}},
		"Itself":            {reason: "the list contains the pod itself", claim: forOnePod(), others: []client.Object{sharer("web-1", on, gen.UID("pod-1"))}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := onePod(tc.others...)
			w.put(tc.claim)
			p, bc := pluginIn(w), contextFor(thePod())
			verdict, err := p.pass(t.Context(), bc)
			require.NoError(t, err)
			if tc.free {
				assert.Empty(t, verdict.Writes, tc.reason)
				return
			}
			assert.Equal(t, []string{"reserve the ReadWriteOncePod claim default/data"}, verdict.Writes)
			assert.False(t, verdict.Permanent)
			assert.Zero(t, verdict.Wait)
			assert.Empty(t, w.records(), "PreFlight reserves nothing")
			err = p.PreBind(t.Context(), bc)
			assert.Len(t, w.records(), 1, "the reservation is older than the list")
			if tc.says != "" {
				assert.True(t, frameworktest.IsKind(err, refuse), "%s: %v", tc.reason, err)
				assert.Equal(t, "PersistentVolumeClaim default/data", framework.AsError(Name, err).Object.String())
				assert.ErrorContains(t, err, tc.says)
				return
			}
			require.NoError(t, err, tc.reason)
			bc.Written = true
			verdict, err = p.pass(t.Context(), bc)
			require.NoError(t, err)
			assert.Zero(t, verdict, "the claim is reserved")
		})
	}
}

// TestExclusive_ChecksUsersOfAnOldReservation: the list of pods must have succeeded after the
// reservation, by the same attempt.
func TestExclusive_ChecksUsersOfAnOldReservation(t *testing.T) {
	w := onePod(sharer("a", gen.BoundTo("node-b")))
	p, bc := pluginIn(w), contextFor(thePod())
	_, err := p.pass(t.Context(), bc)
	require.NoError(t, err)
	w.fail = func(name string) error {
		if name == "pods" {
			return apierrors.NewServiceUnavailable("restarting")
		}
		return nil
	}
	err = p.PreBind(t.Context(), bc)
	assert.True(t, frameworktest.IsKind(err, framework.KindWait), "%v", err)
	w.fail = nil
	verdict, err := p.pass(t.Context(), bc)
	require.NoError(t, err)
	assert.NotEmpty(t, verdict.Writes)
	err = p.PreBind(t.Context(), bc)
	assert.True(t, frameworktest.IsKind(err, refuse), "%v", err)
	assert.Len(t, w.records(), 1)
}

// TestExclusive_Replaced: the cache of a process that was suspended contains a claim that was deleted and created again.
func TestExclusive_Replaced(t *testing.T) {
	w := onePod()
	p, bc := pluginIn(w), contextFor(thePod())
	_, err := p.pass(t.Context(), bc)
	require.NoError(t, err)
	w.put(theClaim(gen.UID("another"), gen.AccessModes(corev1.ReadWriteOncePod)))
	err = p.PreBind(t.Context(), bc)
	assert.True(t, frameworktest.IsKind(err, framework.KindWait), "%v", err)
	assert.ErrorIs(t, err, errReplaced)
}

// TestExclusive_ReplacedAfterPreBind: a second PreBind for a claim of the same name makes no reservation, which the engine would take for one
// of the first.
func TestExclusive_ReplacedAfterPreBind(t *testing.T) {
	w := onePod()
	p, bc := pluginIn(w), contextFor(thePod())
	pass := func() error {
		verdict, err := p.pass(t.Context(), bc)
		require.NoError(t, err)
		require.NotEmpty(t, verdict.Writes)
		return p.PreBind(t.Context(), bc)
	}
	behind, err := p.pass(t.Context(), bc)
	require.NoError(t, err)
	require.NotEmpty(t, behind.Writes)
	old := *bc
	require.NoError(t, p.PreBind(t.Context(), bc))
	bc.Written, old.Written = true, true
	err = p.PreBind(t.Context(), &old)
	assert.True(t, frameworktest.IsKind(err, framework.KindWait), "the cache is behind: %v", err)

	another := theClaim(gen.UID("another"), gen.AccessModes(corev1.ReadWriteOncePod), gen.BoundToVolume("pv"))
	w.put(another)
	w.put(volumeNamed("pv", gen.ClaimRef(another)))
	err = pass()
	assert.True(t, frameworktest.IsKind(err, refuse), "%v", err)
	assert.ErrorContains(t, err, "was replaced during the bind")
	assert.Len(t, w.records(), 1)
}

// TestExclusive_TwoClaims: two pods list the same claims in another order. Each bind reserves them in one order, so that
// neither has one claim and waits for the other.
func TestExclusive_TwoClaims(t *testing.T) {
	logs := claimNamed("logs", gen.AccessModes(corev1.ReadWriteOncePod), gen.BoundToVolume("pv2"))
	p := pluginIn(onePod(logs, volumeNamed("pv2", gen.ClaimRef(logs))))
	for _, claims := range [][]string{{"data", "logs"}, {"logs", "data"}} {
		bc := contextFor(gen.Pod("web", gen.UsesClaim(claims[0]), gen.UsesClaim(claims[1])))
		_, err := p.pass(t.Context(), bc)
		require.NoError(t, err)
		assert.Equal(t, "data", planned(t, bc).exclusive[0].claim.Name)
	}
}

// TestExclusive_Release: attempts at the bind of one pod share the reservation, and each releases its own part.
func TestExclusive_Release(t *testing.T) {
	w := onePod()
	p := pluginIn(w)
	attempt := func(id, node string) *framework.BindContext {
		bc := contextFor(sharer("one"))
		bc.Attempt, bc.Node = id, gen.Node(node)
		_, err := p.pass(t.Context(), bc)
		require.NoError(t, err)
		require.NoError(t, p.PreBind(t.Context(), bc))
		return bc
	}
	first, second := attempt("r-1", "node-a"), attempt("s-1", "node-b")
	marks, err := p.Marks(t.Context())
	require.NoError(t, err)
	pod := types.NamespacedName{Namespace: "default", Name: "one"}
	assert.Equal(t, []framework.Mark{
		{Pod: pod, PodUID: "one", Node: "node-a", Attempt: "r-1"}, {Pod: pod, PodUID: "one", Node: "node-b", Attempt: "s-1"},
	}, marks)

	stranger := contextFor(sharer("two"))
	verdict, err := p.pass(t.Context(), stranger)
	require.NoError(t, err)
	assert.Empty(t, verdict.Writes)
	assert.Equal(t, "PersistentVolumeClaim default/data: the bind of pod default/one, which uses the ReadWriteOncePod claim", verdict.Wait.String())
	require.NoError(t, p.PreBindRollBack(t.Context(), stranger.Mark()))
	require.NoError(t, p.PreBindRollBack(t.Context(), first.Mark()))
	require.NoError(t, p.PreBindRollBack(t.Context(), first.Mark()), "the rollback is idempotent")
	marks, err = p.Marks(t.Context())
	require.NoError(t, err)
	require.Len(t, marks, 1, "the other attempt keeps its part")

	// A record that cannot be decoded does not keep the others.
	w.put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "prebind-system", Name: "broken", Labels: map[string]string{ledger.Label: component}}})
	other := second.Mark()
	other.Attempt = "gone-1"
	require.NoError(t, p.PreBindRollBack(t.Context(), other))
	assert.Len(t, w.records(), 2, "the rollback of another attempt releases nothing")
	require.NoError(t, p.PostBind(t.Context(), other, nil))
	assert.Len(t, w.records(), 1, "a bound pod needs no reservation, whichever attempt has bound it")
}

// A tenant can write pods with thousands of volumes.
func TestExclusive_TooMany(t *testing.T) {
	w, options := onePod(), []gen.PodOption{}
	use := func(name string) {
		claim := claimNamed(name, gen.AccessModes(corev1.ReadWriteOncePod), gen.BoundToVolume("pv-"+name))
		w.put(claim)
		w.put(volumeNamed("pv-"+name, gen.ClaimRef(claim)))
		options = append(options, gen.UsesClaim(name))
	}
	for i := range maxExclusive - 1 {
		use(fmt.Sprintf("more-%d", i))
	}
	_, err := pluginIn(w).pass(t.Context(), contextFor(thePod(options...)))
	require.NoError(t, err)
	use("last")
	_, err = pluginIn(w).pass(t.Context(), contextFor(thePod(options...)))
	assert.ErrorContains(t, err, "129 ReadWriteOncePod claims")
}

// TestExclusive_PostBindReadsItsRecords: other pods can have any number of ReadWriteOncePod claims.
func TestExclusive_PostBindReadsItsRecords(t *testing.T) {
	w := onePod()
	for i := range 10 {
		data, err := (&record{claim: types.UID(fmt.Sprint(i)), holder: holder{Pod: ledger.ObjectName{Namespace: "other", Name: "db"}, UID: "db", Attempts: map[string]string{"r-9": "node-b"}}}).Encode()
		require.NoError(t, err)
		w.put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "prebind-system", Name: fmt.Sprint(recordPrefix, i), Labels: map[string]string{ledger.Label: component}}, Data: data})
	}
	cached := &fakeapi.Listing{Reader: w.cached}
	w.cached = cached
	p, bc := pluginIn(w), contextFor(thePod())
	_, err := p.pass(t.Context(), bc)
	require.NoError(t, err)
	require.NoError(t, p.PreBind(t.Context(), bc))
	marks, err := p.Marks(t.Context())
	require.NoError(t, err)
	assert.Len(t, marks, 11, "the marks of all pods")
	cached.Items = 0
	require.NoError(t, p.PostBind(t.Context(), bc.Mark(), nil))
	assert.Equal(t, 1, cached.Items)
	assert.Len(t, w.records(), 10, "the record of the pod is deleted")
	require.NoError(t, p.PostBind(t.Context(), onNode(gen.Pod("web-2", gen.UID("without-claims")), theNode()).Mark(), nil))
	assert.Equal(t, 1, cached.Items)
}

// TestExclusive_ReleaseConflict: two replicas roll back their attempts at one bind at the same time.
func TestExclusive_ReleaseConflict(t *testing.T) {
	w := onePod()
	p, bc := pluginIn(w), contextFor(sharer("one"))
	_, err := p.pass(t.Context(), bc)
	require.NoError(t, err)
	require.NoError(t, p.PreBind(t.Context(), bc))
	deletions := 0
	w.Before = func(c fakeapi.Call) error {
		if c.Verb != "delete" {
			return nil
		}
		if deletions++; deletions == 1 {
			return fakeapi.Conflict("ConfigMap", c.Key.Name)
		}
		return nil
	}
	require.NoError(t, p.PreBindRollBack(t.Context(), bc.Mark()))
	assert.Equal(t, 2, deletions)
	assert.Empty(t, w.records())
}

// A pod can use the claim as its ephemeral volume.
func TestExclusive_Ephemeral(t *testing.T) {
	claim := claimNamed("app-tmp", gen.AccessModes(corev1.ReadWriteOncePod), gen.BoundToVolume("pv"), gen.OwnedBy("Pod", "app", "app"))
	running := gen.Pod("app", gen.UID("app"), gen.EphemeralVolume("tmp"), gen.BoundTo("node-b"))
	web := gen.Pod("web", gen.UID("pod-1"), gen.UsesClaim("app-tmp"))
	p, bc := pluginIn(newWorld(running, web, theNode(), claim, volumeNamed("pv", gen.ClaimRef(claim)))), contextFor(web)
	_, err := p.pass(t.Context(), bc)
	require.NoError(t, err)
	require.ErrorContains(t, p.PreBind(t.Context(), bc), "pod app on node node-b uses the ReadWriteOncePod claim")
}

func TestRecord_Unreadable(t *testing.T) {
	cases := map[string]map[string]string{
		"Empty":      {},
		"NoAttempts": {claimField: "c", holderField: `{"pod":"a/b","uid":"u","attempts":{}}`},
		"NoUID":      {claimField: "c", holderField: `{"pod":"a/b","attempts":{"r-1":"n"}}`},
		"NoClaim":    {holderField: `{"pod":"a/b","uid":"u","attempts":{"r-1":"n"}}`, "more": ""},
		"More":       {claimField: "c", holderField: `{"pod":"a/b","uid":"u","attempts":{"r-1":"n"}}`, "more": ""},
		"NoJSON":     {claimField: "c", holderField: `{`},
	}
	for name, data := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := decodeRecord(data)
			assert.Error(t, err)
		})
	}
	_, err := decodeRecord(map[string]string{claimField: "c", holderField: `{"pod":"a/b","uid":"u","attempts":{"r-1":"n"}}`})
	require.NoError(t, err)
}
