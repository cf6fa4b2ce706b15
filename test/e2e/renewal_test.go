// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/binder/replica"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
)

// With hundreds of waiting pods whose texts have the maximum length, the replica still renews its Lease. It reports the number of
// omitted entries.
func TestHugeStatusDoesNotStopTheRenewal(t *testing.T) {
	t.Parallel()
	const pods = 220
	w := ownWorld(t, 1)
	b := newBench(t, w, nil)
	var selector []string
	for n := range 20 {
		key := fmt.Sprintf("k%d-", n)
		selector = append(selector, "example.com/"+key+strings.Repeat("k", 63-len(key))+"="+strings.Repeat("v", 63))
	}
	ctx, giveUp := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	defer calls.Wait()
	defer giveUp()
	for n := range pods {
		name := fmt.Sprintf("p%d-", n)
		pod, err := b.createPod(name+strings.Repeat("x", 253-len(name)), byHand)
		require.NoError(t, err)
		binding := gen.Binding(pod, "node-1", expects(strings.Join(selector, ",")), waits("10m"))
		calls.Go(func() { _ = b.client.CoreV1().Pods(b.ns).Bind(ctx, binding, metav1.CreateOptions{}) })
	}

	report := func(c require.TestingT) replica.Status {
		all, err := replica.Statuses(t.Context(), b.client, install.Namespace)
		require.NoError(c, err)
		require.Len(c, all, 1)
		return all[0]
	}
	var full replica.Status
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		full = report(c)
		assert.Greater(c, len(full.InFlight)+full.LeftOut, pods-20)
	}, patience, again, "the replica should report its attempts")
	t.Logf("%d attempts are reported, %d are omitted", len(full.InFlight), full.LeftOut)
	assert.NotEmpty(t, full.InFlight)
	assert.Positive(t, full.LeftOut)
	out, errs, code := b.command("status")
	require.Zero(t, code, errs)
	assert.Contains(t, out, "more binds are not reported")
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		now := report(c)
		assert.Greater(c, now.Reported.Sub(full.Reported.Time), 15*time.Second)
		assert.NotEmpty(c, now.Version)
	}, patience, again, "the lease should be renewed again and again")
}
