// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/prebind/prebind/test/cluster"
)

// TestDisturbances checks that a replica counts as undisturbed if no fault can keep it from renewing its Lease.
func TestDisturbances(t *testing.T) {
	const length = time.Minute
	cases := map[string]struct {
		reason string
		fault  fault
		// during and after are the numbers of undisturbed replicas during the fault and right after it.
		during, after int
	}{
		"Killed":    {reason: "a killed replica cannot renew its Lease", fault: fault{kind: "kill", target: "replica-0"}, during: 1, after: 1},
		"Clock":     {reason: "certificates may be invalid by a wrong clock", fault: fault{kind: wrongClock, target: clockOf("replica-1")}, during: 1, after: 1},
		"APIServer": {reason: "no replica can renew its Lease without the API server", fault: fault{kind: "kill", target: cluster.APIServer}},
		"Etcd":      {reason: "no replica can renew its Lease without etcd", fault: fault{kind: "kill", target: cluster.Etcd}},
		"Scheduler": {reason: "kube-scheduler does not affect Leases", fault: fault{kind: "kill", target: cluster.Scheduler}, during: 2, after: 2},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			d := newDisturbances()
			assert.Zero(t, d.undisturbed(time.Now(), length), "the replicas have just started")
			for replica := range d.last {
				d.last[replica] = time.Now().Add(-2 * length)
			}
			over := d.during(tc.fault)
			assert.Equal(t, tc.during, d.undisturbed(time.Now(), length), tc.reason)
			over()
			assert.Equal(t, tc.after, d.undisturbed(time.Now(), length), "the fault has just ended")
			assert.Equal(t, replicas, d.undisturbed(time.Now().Add(length), length), "the fault is long over")
		})
	}
}

func TestValueOf(t *testing.T) {
	const text = "# TYPE sys gauge\nsys_total 3\nsys 1.5e+06\nsys{a=\"b\"} 7\n"
	assert.InDelta(t, 1.5e6, valueOf(text, "sys"), 0)
	assert.Zero(t, valueOf(text, "other"))
}

// TestLongExpectation checks that the text is a valid selector close to the maximum length.
func TestLongExpectation(t *testing.T) {
	text := longExpectation(rand.New(rand.NewPCG(1, 1)))
	assert.LessOrEqual(t, len(text), 4096)
	assert.Greater(t, len(text), 3500)
	_, err := labels.Parse(text)
	assert.NoError(t, err)
}

// TestSlowBody checks that slowBody distinguishes a server that waits for the last byte from one that rejects the body.
func TestSlowBody(t *testing.T) {
	got := make(chan int, 2)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > 1<<20 {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			return
		}
		assert.True(t, strings.HasPrefix(r.RemoteAddr, "127.0.0.2:"), "the remote address is %s", r.RemoteAddr)
		body, _ := io.ReadAll(r.Body)
		got <- len(body)
	}))
	t.Cleanup(server.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	require.NoError(t, slowBody(ctx, server.Listener.Addr().String(), 1<<20))
	assert.Equal(t, 1<<20-1, <-got, "the server receives all bytes except the last")
	require.Error(t, slowBody(t.Context(), server.Listener.Addr().String(), 8<<20))
}
