// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

var errDown = errors.New("the API server is down")

// TestUpstream contains the cases of upstream's TestPlugin (Kubernetes v1.36.3,
// dynamicresources_test.go) for PreBind and Unreserve, with upstream's names. TestAssess and TestConditions contain
// those that reject the bind.
func TestUpstream(t *testing.T) {
	cases := map[string]struct {
		reason  string
		pod     *corev1.Pod
		objects []client.Object
		// prepare runs between PreFlight and PreBind, as another client.
		prepare func(s *apiServer)
		// want is the kind of the error of PreFlight or PreBind. It is empty if there is no error.
		want framework.Kind
		text string
		// skip means that there is nothing to do.
		skip bool
		// after checks the resulting claim.
		users   []string
		devices []string
	}{
		"empty":           {reason: "the pod has no claims", pod: thePod("web"), skip: true},
		"claim-reference": {reason: "PreBind reserves the claim", objects: []client.Object{theClaim("c", allocated("node-a", "gpu-0"))}, users: []string{"web"}, devices: []string{"gpu-0"}},
		"reserved-okay-podgroup": {
			reason: "the scheduler has reserved the claim for the PodGroup", pod: thePod("web", grouped, template("c")), skip: true,
			objects: []client.Object{theClaim("c", ofGroup("team"), allocated("node-a", "gpu-0"), reservedToGroup("team"))}, users: []string{"team"}, devices: []string{"gpu-0"},
		},
		"reserved-okay": {
			reason: "kube-scheduler has allocated and reserved the claim", objects: []client.Object{theClaim("c", allocated("node-a", "gpu-0"), reservedTo("web"))}, skip: true,
			users: []string{"web"}, devices: []string{"gpu-0"},
		},
		"add-allocation-timestamp-failure": {
			reason: "the claim was deallocated after PreFlight", objects: []client.Object{theClaim("c", allocated("node-a", "gpu-0"))},
			prepare: func(s *apiServer) {
				s.change("kube-scheduler", func(c *resourcev1.ResourceClaim) { c.Status = resourcev1.ResourceClaimStatus{} })
			},
			want: framework.KindRefuse, text: "not allocated", users: []string{},
		},
		"multi-claims-binding-conditions-all-success": {
			reason: "PreBind reserves both claims", pod: thePod("web", uses("c", "d")), users: []string{"web"}, devices: []string{"gpu-0"},
			objects: []client.Object{
				theClaim("c", allocated("node-a", "gpu-0"), needs(both, nil), says("gpu-0", yes)), theClaim("d", allocated("node-a", "gpu-1"), needs(both, nil), says("gpu-1", yes)),
			},
		},
		"multi-claims-binding-conditions-one-fail": {
			reason: "nothing is reserved for a pod that cannot be bound", pod: thePod("web", uses("c", "d")), want: framework.KindRefuse, text: "gpu-1", users: []string{}, devices: []string{"gpu-0"},
			objects: []client.Object{
				theClaim("c", allocated("node-a", "gpu-0")),
				theClaim("d", allocated("node-a", "gpu-1"), reservedTo("web"), needs(both, []string{"broken"}), says("gpu-1", map[string]metav1.ConditionStatus{"broken": "True"})),
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pod := tc.pod
			if pod == nil {
				pod = thePod("web", uses("c"))
			}
			s := newAPI(gen.Node("node-a"), pod)
			for _, o := range tc.objects {
				s.Put(o)
			}
			r := newReplica(t, s)
			bc := bind(pod, "node-a", "here-1")
			s.Forget()
			verdict, err := r.preFlight(t.Context(), bc)
			writes := len(verdict.Writes) > 0
			assert.Empty(t, s.written(), "PreFlight never writes")
			if tc.prepare != nil {
				tc.prepare(s)
			}
			if err == nil && writes {
				err = r.Plugin.PreBind(t.Context(), bc)
			}
			assert.Equal(t, tc.skip, err == nil && !writes && isReady(verdict), tc.reason)
			if tc.skip {
				assert.Empty(t, s.written(), "a bind that is ready writes nothing")
				assert.Zero(t, s.Reads(), "a bind that is ready reads nothing from the API server")
			}
			if tc.want == "" {
				require.NoError(t, err, tc.reason)
			} else {
				require.Error(t, err, tc.reason)
				assert.Equal(t, tc.want, framework.AsError(Name, err).Kind, "%s: %v", tc.reason, err)
				assert.ErrorContains(t, err, tc.text, tc.reason)
			}
			if tc.want != "" && writes {
				require.NoError(t, r.PreBindRollBack(t.Context(), bc))
			}
			if claim := s.claim(); tc.users != nil {
				assert.ElementsMatch(t, tc.users, users(claim), tc.reason)
				assert.Equal(t, tc.devices, devices(claim), tc.reason)
				if tc.want == "" && !tc.skip && tc.devices != nil {
					require.NoError(t, r.PostBind(t.Context(), bc))
					assert.Empty(t, unsettled(s.claim()), "PostBind removes the mark")
					assert.ElementsMatch(t, tc.users, users(s.claim()), "PostBind keeps the reservations")
				}
			}
		})
	}
}

// TestUpstreamBindFailure contains upstream's bind-failure cases: Unreserve removes the
// reservation and keeps the allocation.
func TestUpstreamBindFailure(t *testing.T) {
	cases := map[string]struct {
		reason  string
		claim   *resourcev1.ResourceClaim
		users   []string
		devices []string
	}{
		"bind-failure":        {reason: "the roll-back removes the reservation and keeps the allocation", claim: theClaim("c", allocated("node-a", "gpu-0")), users: []string{}, devices: []string{"gpu-0"}},
		"bind-failure-shared": {reason: "the roll-back keeps the reservations of other pods", claim: theClaim("c", allocated("node-a", "gpu-0"), reservedTo("db")), users: []string{"db"}, devices: []string{"gpu-0"}},
		"bind-podgroup-failure": {
			reason: "the roll-back keeps the scheduler's reservation for the PodGroup", claim: theClaim("c", allocated("node-a", "gpu-0"), reservedToGroup("team")),
			users: []string{"team"}, devices: []string{"gpu-0"},
		},
		"bind-failure-reserved": {reason: "the roll-back keeps the scheduler's reservation for the pod", claim: theClaim("c", allocated("node-a", "gpu-0"), reservedTo("web")), users: []string{"web"}, devices: []string{"gpu-0"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pod := thePod("web", uses("c"), grouped)
			s := newAPI(gen.Node("node-a"), pod, tc.claim)
			r := newReplica(t, s)
			bc := bind(pod, "node-a", "here-1")
			require.NoError(t, r.PreBind(t.Context(), bc))
			require.NoError(t, r.PreBindRollBack(t.Context(), bc))
			assert.Equal(t, tc.users, users(s.claim()), tc.reason)
			assert.Equal(t, tc.devices, devices(s.claim()), tc.reason)
			assert.Empty(t, unsettled(s.claim()), "the roll-back removes the mark")
			s.Forget()
			require.NoError(t, r.PreBindRollBack(t.Context(), bc))
			assert.Empty(t, s.written(), "a second roll-back writes nothing")
		})
	}
}

// firstWrite makes the first request with the verb fail.
func firstWrite(verb string, err error) func(fakeapi.Call) error {
	done := false
	return func(w fakeapi.Call) error {
		if w.Verb == verb && !done {
			done = true
			return err
		}
		return nil
	}
}

// devices returns the names of the devices of the claim.
func devices(claim *resourcev1.ResourceClaim) []string {
	var names []string
	if claim.Status.Allocation != nil {
		for _, r := range claim.Status.Allocation.Devices.Results {
			names = append(names, r.Device)
		}
	}
	return names
}
