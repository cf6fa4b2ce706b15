// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/prebind/prebind/binder/framework"
)

var schedulerUser = authenticationv1.UserInfo{Username: "scheduler", UID: "1", Groups: []string{"a", "b"}}

// byScheduler is the request that begins the attempts of these tests.
func byScheduler() Request {
	r := annotated("example.com/queue", "1")
	r.Binding.Labels = map[string]string{"example.com/team": "a"}
	r.User = schedulerUser
	return r
}

// rulesFor is a plugin that rejects the calls, and skips all others.
func rulesFor(rejects func(bc *framework.BindContext) bool) *checker {
	return &checker{plugin: plugin{name: "rules"}, preFlight: func(bc *framework.BindContext) (framework.Next, error) {
		if rejects(bc) {
			return framework.Run, framework.Refuse(claim, "not for this call")
		}
		bc.SetLabel("rules", "example.com/approved", "yes")
		return framework.Skip, nil
	}}
}

// TestJoin_IsRejectedAlone: a call that would be rejected without the attempt of another client is also rejected with
// it, and does not change the attempt.
func TestJoin_IsRejectedAlone(t *testing.T) {
	cases := map[string]struct {
		reason  string
		change  func(r *Request)
		rejects func(bc *framework.BindContext) bool
	}{
		"Username": {
			reason: "rules can use the name", change: func(r *Request) { r.User.Username = "other" },
			rejects: func(bc *framework.BindContext) bool { return bc.User.Username == "other" },
		},
		"UID": {
			reason: "a deleted user can have had the name", change: func(r *Request) { r.User.UID = "2" },
			rejects: func(bc *framework.BindContext) bool { return bc.User.UID == "2" },
		},
		"Groups": {
			reason: "rules can use groups", change: func(r *Request) { r.User.Groups = []string{"a"} },
			rejects: func(bc *framework.BindContext) bool { return len(bc.User.Groups) == 1 },
		},
		"Extra": {
			reason: "rules can use the extra values", change: func(r *Request) { r.User.Extra = map[string]authenticationv1.ExtraValue{"k": {"v"}} },
			rejects: func(bc *framework.BindContext) bool { return len(bc.User.Extra) > 0 },
		},
		"Annotation": {
			reason: "rules can use annotations of the Binding", change: func(r *Request) { r.Binding.Annotations["example.com/queue"] = "2" },
			rejects: func(bc *framework.BindContext) bool { return bc.Binding.Annotations["example.com/queue"] == "2" },
		},
		"NoAnnotation": {
			reason: "a missing annotation is another one", change: func(r *Request) { r.Binding.Annotations = nil },
			rejects: func(bc *framework.BindContext) bool { return bc.Binding.Annotations == nil },
		},
		"Label": {
			reason: "rules can use labels of the Binding", change: func(r *Request) { r.Binding.Labels["example.com/team"] = "b" },
			rejects: func(bc *framework.BindContext) bool { return bc.Binding.Labels["example.com/team"] == "b" },
		},
		"Parameter": {
			reason: "a rejected call does not cancel the attempt by other parameters", change: func(r *Request) {
				r.User.Username = "other"
				r.Binding.Annotations["waiter.prebind.dev/device"] = "2"
			},
			rejects: func(bc *framework.BindContext) bool { return bc.User.Username == "other" },
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, rules := newWaiter(), rulesFor(tc.rejects)
				e := engineWith(t, w, rules)
				other := byScheduler()
				tc.change(&other)
				rejected := func(phase string) {
					d, took := timed(t.Context(), e, other)
					require.Equal(t, framework.KindRefuse, kindOf(d.Err), "%s: %s", phase, tc.reason)
					assert.Equal(t, "rules", d.Err.Plugin, phase)
					assert.Zero(t, took, phase)
					assert.Empty(t, d.Labels, phase)
				}

				held := later(t.Context(), e, byScheduler())
				synctest.Wait()
				rejected("preparing")
				w.release <- nil
				first := <-held
				require.Nil(t, first.Err, "the attempt continues")
				assert.Equal(t, "yes", first.Labels["example.com/approved"])

				rejected("prepared")
				held = later(t.Context(), e, byScheduler())
				synctest.Wait()
				rejected("preparing again")
				w.release <- nil
				second := <-held
				require.Nil(t, second.Err)
				assert.Equal(t, first.Attempt, second.Attempt, "the attempt was not rolled back")
				assert.Zero(t, w.rollBacks.Load())
			})
		})
	}
}

// TestJoin_LeavesTheFailure: the failure of an attempt stays for the client that began it.
func TestJoin_LeavesTheFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiter()
		e := engineWith(t, w, rulesFor(func(bc *framework.BindContext) bool { return bc.User.Username == "other" }))
		require.Equal(t, framework.KindWait, kindOf(e.Bind(t.Context(), byScheduler()).Err))
		w.release <- framework.Refuse(claim, "no")
		synctest.Wait()
		other := byScheduler()
		other.User.Username = "other"
		d := e.Bind(t.Context(), other)
		require.NotNil(t, d.Err)
		assert.Equal(t, "rules", d.Err.Plugin)
		d = e.Bind(t.Context(), byScheduler())
		require.NotNil(t, d.Err)
		assert.Equal(t, "waiter", d.Err.Plugin)
	})
}

// TestJoin_PreFlights: only a call of another user, or with another Binding, has its own PreFlight. If that does not
// reject the call, it joins the attempt.
func TestJoin_PreFlights(t *testing.T) {
	cases := map[string]struct {
		reason     string
		change     func(r *Request)
		preFlights int32
	}{
		"Equal": {reason: "a repeated call costs nothing", change: func(*Request) {}, preFlights: 1},
		"Additions": {
			reason: "the annotation of the attempt comes back when the API server calls again", preFlights: 1,
			change: func(r *Request) { r.Binding.Annotations[attemptKeyOfTests] = "here-1" },
		},
		"Allowed": {reason: "no rule rejects the user", change: func(r *Request) { r.User.Username = "friend" }, preFlights: 2},
		"Waits":   {reason: "a wait is not a rejection", change: func(r *Request) { r.User.Username = "slow" }, preFlights: 2},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWaiter()
				rules := &checker{plugin: plugin{name: "rules"}, preFlight: func(bc *framework.BindContext) (framework.Next, error) {
					if bc.User.Username == "slow" {
						bc.ExpectWait(framework.Waiting{For: "the rule"})
						return framework.Run, nil
					}
					return framework.Skip, nil
				}}
				e := engineWith(t, w, rules)
				first := later(t.Context(), e, byScheduler())
				synctest.Wait()
				r := byScheduler()
				tc.change(&r)
				second := later(t.Context(), e, r)
				synctest.Wait()
				assert.Equal(t, tc.preFlights, rules.preFlights.Load(), tc.reason)
				w.release <- nil
				require.Nil(t, (<-first).Err)
				require.Nil(t, (<-second).Err, tc.reason)
				assert.EqualValues(t, 1, w.preBinds.Load())
			})
		})
	}
}

// TestJoin_DoesNotDiscard: a prepared attempt does not end because its annotations do not fit into the Binding of
// another client.
func TestJoin_DoesNotDiscard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiter()
		wait := w.preBind
		w.preBind = func(ctx context.Context, bc *framework.BindContext) error {
			bc.Annotate("waiter", "large", strings.Repeat("x", 200<<10))
			return wait(ctx, bc)
		}
		e := engineWith(t, w)
		began := e.Bind(t.Context(), byScheduler())
		require.Equal(t, framework.KindWait, kindOf(began.Err))
		other := byScheduler()
		other.Binding.Annotations["example.com/large"] = strings.Repeat("x", 100<<10)
		joined := later(t.Context(), e, other)
		synctest.Wait()
		w.release <- nil
		require.Equal(t, framework.KindInvalid, kindOf((<-joined).Err))
		pass(time.Second) // a rollback needs a later time
		assert.Zero(t, w.rollBacks.Load())
		held := later(t.Context(), e, byScheduler())
		synctest.Wait()
		w.release <- nil
		d := <-held
		require.Nil(t, d.Err)
		assert.Equal(t, began.Attempt, d.Attempt)
	})
}
