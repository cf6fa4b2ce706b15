// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/assembly"
	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/plugins/device"
	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/telemetry"
	"github.com/prebind/prebind/test/gen"
)

// waitsForConfigMap is a plugin that waits for the ConfigMap "ready" of the pod's namespace.
func waitsForConfigMap() framework.Registration {
	const name = "wait-for-config"
	decide := func(ctx context.Context, cache framework.Reader, bc *framework.BindContext) (framework.Verdict, error) {
		object := framework.Object{Kind: "ConfigMap", Namespace: bc.Pod.Namespace, Name: "ready"}
		found, err := framework.Get(ctx, cache, &corev1.ConfigMap{}, object.Namespace, object.Name)
		if err != nil || found != nil {
			return framework.Verdict{}, err
		}
		return framework.Verdict{Wait: framework.Wait{Object: object, For: "the ConfigMap to be created"}}, nil
	}
	return framework.Registration{
		Name: name, Description: "waits for a ConfigMap", On: true, Watches: framework.Always(&corev1.ConfigMap{}),
		New: func(framework.Handle, framework.Arguments) (framework.Plugin, error) {
			return framework.NewPlugin(name, decide), nil
		},
	}
}

// TestCachesNarrowed_WakeOtherPlugins checks that a plugin can wait for a ConfigMap of a user although the plugin device restricts
// the cache to its own ConfigMaps.
func TestCachesNarrowed_WakeOtherPlugins(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	registry := &assembly.Registry{Plugins: []framework.Registration{device.Registration(), waitsForConfigMap()}}
	require.NoError(t, registry.Check())
	recorder, err := telemetry.New(telemetry.Options{Registry: prometheus.NewRegistry(), Clock: clock.RealClock{}})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	mgr, err := assembly.NewManager(ctx, b.cluster.Config(), "0", registry, b.ns)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		assert.NoError(t, <-ended)
	})
	a := assembly.New(assembly.Options{
		Manager: mgr, Registry: registry, Recorder: recorder, Namespace: b.ns, WaitFor: func(string, func() bool) {},
	})
	settings, err := a.Settings(ctx, v1alpha1.Default(registry.Components()))
	require.NoError(t, err)
	require.Len(t, settings.Plugins, 2)
	waiter := settings.Plugins[1].Name()

	b.pod(byHand)
	pod, err := b.client.CoreV1().Pods(b.ns).Get(t.Context(), b.binding("node-1").Name, metav1.GetOptions{})
	require.NoError(t, err)
	node, err := b.client.CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{})
	require.NoError(t, err)
	engine, err := binder.New(binder.Options{
		Cached: mgr.GetCache(), CachedFor: a.CachedFor, Live: mgr.GetAPIReader(), Settings: settings, Replica: "test", Changes: a.Changes,
		Events: mgr.GetEventRecorder("prebind"), Recorder: recorder, Clock: clock.RealClock{},
	})
	require.NoError(t, err)
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	result := make(chan binder.Decision, 1)
	go func() {
		request := binder.Request{Pod: client.ObjectKeyFromObject(pod), Binding: gen.Binding(pod, node.Name)}
		for {
			d := engine.Bind(waiting, request)
			if d.Err == nil || d.Err.Kind != framework.KindWait || waiting.Err() != nil {
				result <- d
				return
			}
		}
	}()
	require.Eventually(t, func() bool { return len(engine.InFlight()) == 1 }, patience, 10*time.Millisecond)

	_, err = b.client.CoreV1().ConfigMaps(b.ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "ready"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	assert.Nil(t, (<-result).Err, "the ConfigMap wakes the plugin")

	for plugin, want := range map[string]bool{waiter: true, device.Name: false} {
		found, err := framework.Get(ctx, a.CachedFor(plugin), &corev1.ConfigMap{}, b.ns, "ready")
		require.NoError(t, err)
		assert.Equal(t, want, found != nil, "the ConfigMap in the cache of %s", plugin)
	}
}
