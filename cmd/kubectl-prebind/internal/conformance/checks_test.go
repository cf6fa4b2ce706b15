// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/prebind/prebind/test/fakeapi"
)

// readGuide returns the anchors of docs/for-schedulers.md.
func readGuide(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", "for-schedulers.md"))
	require.NoError(t, err)
	var anchors []string
	for _, m := range regexp.MustCompile("(?m)^##+ (.*)$").FindAllStringSubmatch(string(page), -1) {
		anchor := strings.ToLower(strings.ReplaceAll(m[1], " ", "-"))
		anchors = append(anchors, strings.ReplaceAll(anchor, ",", ""))
	}
	return anchors
}

// TestBurst checks that the result of the burst shows how many pods were late, and why.
func TestBurst(t *testing.T) {
	const never = "burst-3"
	tests := map[string]struct {
		reason string
		bound  func(name string) bool
		fails  bool
		says   string
	}{
		"All":  {reason: "the time shows the rate", bound: func(string) bool { return true }, says: `^20 pods bound in \S+ \(\d+ per second\)$`},
		"Late": {reason: "the pod and its event show the cause", bound: func(name string) bool { return name != never }, fails: true, says: `^19 of 20 pods were bound within 1s; pod burst-3 was not bound; its last events: BindRefused: start-limit: full$`},
		"None": {reason: "a pod without events has no cause", bound: func(string) bool { return false }, fails: true, says: `^0 of 20 pods were bound within 1s; pod burst-0 was not bound$`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			client := fakeapi.NewClientset(&eventsv1.Event{
				ObjectMeta: metav1.ObjectMeta{Namespace: "prebind-conformance-a", Name: "refused"},
				Regarding:  corev1.ObjectReference{Kind: "Pod", Name: never, UID: types.UID(never)},
				Reason:     "BindRefused", Note: "start-limit: full",
			})
			client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
				create, ok := a.(clienttesting.CreateAction)
				require.True(t, ok)
				pod, ok := create.GetObject().(*corev1.Pod)
				require.True(t, ok)
				pod.UID = types.UID(pod.Name)
				if tc.bound(pod.Name) {
					pod.Spec.NodeName = "node-1"
				}
				return false, nil, nil
			})
			s := sessionOn(client, &bytes.Buffer{})
			s.Burst, s.Timeout = 20, time.Second
			r := s.make(t.Context(), check{name: "burst", run: checkBurst})
			assert.Equal(t, tc.fails, r.Status == Fail, r.Status)
			assert.Regexp(t, tc.says, r.Detail, tc.reason)
		})
	}
}

func TestOptions_Validate(t *testing.T) {
	tests := map[string]struct {
		change func(o *Options)
		err    string
	}{
		"Defaults":    {change: func(*Options) {}},
		"NoScheduler": {change: func(o *Options) { o.Scheduler = "" }, err: "--scheduler-name: required"},
		"NoWait":      {change: func(o *Options) { o.Wait = 0 }, err: "--wait: must be positive and at most 4m0s, got 0s"},
		"LongWait":    {change: func(o *Options) { o.Wait = time.Hour }, err: "--wait: must be positive and at most 4m0s, got 1h0m0s"},
		"NoTimeout":   {change: func(o *Options) { o.Timeout = -time.Second }, err: "--timeout: must be positive, got -1s"},
		"Burst":       {change: func(o *Options) { o.Burst = 0 }, err: "--burst: must be from 1 to 1000, got 0"},
		"Some":        {change: func(o *Options) { o.Run = regexp.MustCompile("^(wait|nothing)$") }},
		"Only":        {change: func(o *Options) { o.Run = regexp.MustCompile("^bind$") }},
		"NoCheck":     {change: func(o *Options) { o.Run = regexp.MustCompile("burts") }, err: `--run: no check matches "burts";`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := Options{Scheduler: "my-scheduler", Wait: time.Minute, Timeout: time.Minute, Burst: 10}
			tc.change(&o)
			err := o.Validate()
			if tc.err == "" {
				require.NoError(t, err)
				return
			}
			assert.ErrorContains(t, err, tc.err)
		})
	}
}

// Every check refers to a section of the contract, and has a unique name.
func TestChecks(t *testing.T) {
	contract := readGuide(t)
	names := map[string]bool{}
	for i, c := range checks() {
		assert.False(t, names[c.name], c.name)
		names[c.name] = true
		assert.Contains(t, contract, c.section, c.name)
		assert.Contains(t, Describe(), "  "+c.name+" ", "the help shows each check")
		assert.Contains(t, Describe(), c.rule+"\n")
		assert.NotEmpty(t, c.rule)
		assert.Equal(t, i == 0, c.name == "bind", "bind is first, because it decides whether the others are made")
	}
}

// TestAdvice checks that the advice for timeouts refers to a section of the contract.
func TestAdvice(t *testing.T) {
	contract := readGuide(t)
	for _, advice := range []string{adviceRepeat, adviceStay} {
		_, anchor, ok := strings.Cut(advice, guide+"#")
		require.True(t, ok, advice)
		assert.Contains(t, contract, strings.TrimRight(anchor, ")."))
		assert.Contains(t, advice, "rest.Config.Timeout")
	}
}
