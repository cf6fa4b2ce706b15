// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// A pod can request another budget.
func TestTimeoutAnnotation(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	b.claim("data", b.dynamic("10m"))
	b.podWith(cluster.NoPreBindScheduler, gen.Annotation("binder.prebind.dev/timeout", "2s"), gen.UsesClaim("data"))
	says := []string{"timed out after 2s", "/data", "waiting for provisioning"}
	b.untilEvent(append(says, "FailedScheduling")...)
	b.untilEvent(append(says, "BindRefused")...)
}
