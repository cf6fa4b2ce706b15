// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/tls"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/gencert"
	"github.com/prebind/prebind/test/install"
)

// apiServer is the name in the API server's client certificate.
const apiServer = "kube-apiserver"

// TestProtections uses the optional protections of docs/security.md together: client certificates, and the policies for explanations and
// annotations.
func TestProtections(t *testing.T) {
	t.Parallel()
	c := ownCluster(t, cluster.Options{Audit: true, WebhookClient: apiServer})
	w := ownWorld(t, install.Options{Cluster: c}, 1, "--mutators=*,bind-info", "--client-ca-file="+c.CAFile(), "--client-allowed-names="+apiServer)
	t.Run("client certificates", func(t *testing.T) { testOnlyAPIServerCalls(t, w) })
	t.Run("explain role", func(t *testing.T) { testExplainRole(t, w) })
	t.Run("annotation policy", func(t *testing.T) { testAnnotationPolicy(t, w) })
}

// With --client-ca-file, Prebind accepts only reviews of the API server.
func testOnlyAPIServerCalls(t *testing.T, w *world) {
	bound := newBench(t, w, nil)
	bound.claim("data", bound.dynamic("0s"))
	bound.pod(cluster.DefaultScheduler, "data")
	bound.assertTopology(bound.untilBound())

	b := newBench(t, w, nil)
	b.claim("data", b.dynamic("0s"))
	pod := b.podWith(byHand, gen.UsesClaim("data"))
	review := gen.Review(b.binding("node-1", gen.UID(pod.UID)), kubeScheduler, false)
	before, replica := b.state(), w.prebind.Replicas()[0]

	stranger := gencert.NewCA(t, "stranger").Sign(t, apiServer).TLS(t)
	refused := map[string]struct {
		client *tls.Certificate
		says   string
	}{
		"no certificate": {says: "certificate required"},
		"another CA's":   {client: &stranger, says: "unknown certificate authority"},
		"a kubelet's":    {client: b.certificateOf("system:node:node-1"), says: `client certificate \"system:node:node-1\" is not allowed to call`},
	}
	for name, tc := range refused {
		_, err := ask(t.Context(), replica, tc.client, review)
		assert.ErrorContains(t, err, tc.says, name)
	}
	assert.Equal(t, before, b.state(), "no object should be written")

	// The same review from the API server provisions the volume of the claim.
	_, err := ask(t.Context(), replica, b.certificateOf(apiServer), review)
	require.NoError(t, err)
	assert.Equal(t, "node-1", b.untilSelected())
}

// state contains all objects that a forged review could change: the versions of pod and claim, and the number of events.
func (b *bench) state() map[string]string {
	b.t.Helper()
	pod, claim := b.getPod(), b.getClaim("data")
	about := 0
	for _, e := range b.events() {
		if says([]string{e}, "Bind") || says([]string{e}, "PreBind") {
			about++
		}
	}
	return map[string]string{
		"pod": fmt.Sprint(pod.Annotations, pod.Labels), "claim": claim.Annotations[volume.AnnSelectedNode], "events": fmt.Sprint(about),
	}
}

// certificateOf returns a client certificate that the cluster's CA has signed.
func (b *bench) certificateOf(user string) *tls.Certificate {
	b.t.Helper()
	config, err := b.cluster.UserConfig(user)
	require.NoError(b.t, err)
	pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
	require.NoError(b.t, err)
	return &pair
}

// testExplainRole checks that the optional ClusterRole permits kubectl prebind explain in one namespace, but not a bind.
func testExplainRole(t *testing.T, w *world) {
	require.NoError(t, w.prebind.AddComponents(t.Context(), "explain"))
	b, other := newBench(t, w, nil), newBench(t, w, nil)
	const user = "ana"
	grant := func(namespace string) {
		b.kubectl("create", "rolebinding", "explain", "--namespace="+namespace, "--clusterrole=prebind-explain", "--user="+user)
	}
	grant(b.ns)
	config := rest.CopyConfig(w.cluster.Config())
	config.Impersonate.UserName = user
	ana, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)

	// No pod has this name, so no bind succeeds before the policy is in force.
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		err := ana.CoreV1().Pods(b.ns).Bind(t.Context(), b.binding("node-1"), metav1.CreateOptions{})
		assert.ErrorContains(c, err, "permits only dry runs")
	}, patience, again, "the policy should be in force")

	b.claim("data", b.dynamic("10m"))
	b.pod(byHand, "data")
	other.pod(byHand)
	out, errs, code := b.command("explain", "pod", "--node=node-1", "-n="+b.ns, "--as="+user)
	assert.Equal(t, 1, code, "%s", errs)
	assert.Contains(t, out, "waiting for PersistentVolumeClaim "+b.ns+"/data")

	err = ana.CoreV1().Pods(b.ns).Bind(t.Context(), b.binding("node-1"), metav1.CreateOptions{})
	assert.True(t, apierrors.IsForbidden(err), "%v", err)
	assert.ErrorContains(t, err, user+": the ClusterRole prebind-explain permits only dry runs of Bindings")
	assert.NotContains(t, b.getClaim("data").Annotations, volume.AnnSelectedNode, "Prebind prepares nothing for a rejected Binding")

	_, errs, code = b.command("explain", "pod", "--node=node-1", "-n="+other.ns, "--as="+user)
	assert.Equal(t, 3, code, "a tenant cannot read the pods of another")
	assert.Contains(t, errs, "cannot get resource \"pods\"")

	_, err = ana.EventsV1().Events(b.ns).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err, "explain without --node reads events")
	_, errs, code = b.command("top", "--once", "--as="+user)
	assert.NotEqual(t, 0, code, "a tenant cannot see the binds of others")
	assert.Contains(t, errs, "leases")
	grant(install.Namespace)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		_, errs, code := b.command("top", "--once", "--as="+user)
		assert.Equal(c, 0, code, "%s", errs)
	}, patience, again)

	require.NoError(t, other.bindByHand(other.binding("node-1")), "administrators can bind")
	scheduled := newBench(t, w, nil)
	scheduled.pod(cluster.DefaultScheduler)
	scheduled.untilBound()
}

// Prebind's annotations and labels of a pod do not change after it was created: plugins may read an earlier state from their cache.
func TestAnnotationsAreImmutable(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	b.pod(cluster.DefaultScheduler)
	b.assertImmutable(b.untilBound())

	// The policy costs little if no key changes: preemption, eviction and the kubelet update the status of such a pod, too.
	many := gen.Pod("many", gen.InNamespace(b.ns), gen.Scheduler(byHand))
	many.Annotations = map[string]string{}
	for i := range 30_000 {
		many.Annotations[fmt.Sprint(i)] = ""
	}
	_, err := b.client.CoreV1().Pods(b.ns).Create(t.Context(), many, metav1.CreateOptions{})
	require.NoError(t, err)
	assert.NoError(t, b.patchStatus("many"))

	newBench(t, shared, nil).assertRoomForBinding()

	exempt := newBench(t, shared, map[string]string{"prebind.dev/exempt": ""})
	exempt.pod(byHand)
	assert.NoError(t, exempt.patchMetadata("annotations", "device.prebind.dev/gpu", `"GPU-1"`, ""), "Prebind does not read the annotations of pods in an exempt namespace")
}

// assertRoomForBinding checks that the annotations of a pod cannot grow right before its bind: a pod with more than 256 KiB cannot be evicted.
func (b *bench) assertRoomForBinding() {
	b.t.Helper()
	b.pod(byHand)
	text := func(kib int) string { return `"` + strings.Repeat("x", kib<<10) + `"` }
	require.NoError(b.t, b.patchMetadata("annotations", "example.com/note", text(190), ""))
	for _, subresource := range []string{"", "status"} {
		err := b.patchMetadata("annotations", "example.com/more", text(4), subresource)
		assert.True(b.t, apierrors.IsInvalid(err), "%v", err)
		assert.ErrorContains(b.t, err, "at most 192 KiB")
	}
	require.NoError(b.t, b.patchStatus("pod"))
	require.NoError(b.t, b.bindByHand(b.binding("node-1")))
	assert.NoError(b.t, b.patchMetadata("annotations", "example.com/more", text(4), ""), "the pod has a node")
}

// assertImmutable checks which annotations and labels of the bound pod can change.
func (b *bench) assertImmutable(bound *corev1.Pod) {
	b.t.Helper()
	require.NotEmpty(b.t, bound.Annotations["topology.prebind.dev/zone"])
	for key, allowed := range map[string]bool{
		"topology.prebind.dev/zone": false, "device.prebind.dev/gpu": false, "binder.prebind.dev/attempt": false, "rack.policy.prebind.dev/rack": false,
		"prebind.dev/key": false, "topology.example.com/zone": true, "topology.kubernetes.io/zone": true, "notprebind.dev/zone": true, "prebind.development/zone": true,
	} {
		for _, field := range []string{"annotations", "labels"} {
			for _, subresource := range []string{"", "status"} {
				err := b.patchMetadata(field, key, `"mine"`, subresource)
				if allowed {
					assert.NoError(b.t, err, "%s %s %s", field, key, subresource)
					continue
				}
				assert.True(b.t, apierrors.IsInvalid(err), "%s %s %s should be rejected: %v", field, key, subresource, err)
				assert.ErrorContains(b.t, err, "cannot change after the pod is created: "+key+": create the pod again, or let the scheduler set them on the Binding")
			}
		}
	}
	assert.True(b.t, apierrors.IsInvalid(b.patchMetadata("annotations", "topology.prebind.dev/zone", "null", "")), "an annotation should not be removed")
	// The kubelet and other clients that update a pod do not change its annotations.
	require.NoError(b.t, b.patchStatus("pod"))
	pods := b.client.CoreV1().Pods(b.ns)
	pod, err := pods.Get(b.t.Context(), "pod", metav1.GetOptions{})
	require.NoError(b.t, err)
	pod.Annotations["example.com/note"] = "new"
	_, err = pods.Update(b.t.Context(), pod, metav1.UpdateOptions{})
	require.NoError(b.t, err)
	b.assertTopology(pod)
	require.NoError(b.t, pods.Delete(b.t.Context(), "pod", metav1.DeleteOptions{}))
}

// With the optional policies, the API server permits only Prebind to write its annotations.
func testAnnotationPolicy(t *testing.T, w *world) {
	require.NoError(t, w.prebind.AddComponents(t.Context(), "annotation-policy"))
	untilPolicy(t, w)

	t.Run("create", func(t *testing.T) { testPolicyCreate(t, w) })
	t.Run("bind", func(t *testing.T) { testPolicyBind(t, w) })
	t.Run("exempt", func(t *testing.T) {
		b := newBench(t, w, map[string]string{"prebind.dev/exempt": ""})
		pod := gen.Pod("pod", gen.InNamespace(b.ns), gen.Scheduler(byHand))
		pod.Annotations = map[string]string{"topology.prebind.dev/zone": "anywhere"}
		_, err := b.client.CoreV1().Pods(b.ns).Create(t.Context(), pod, metav1.CreateOptions{})
		assert.NoError(t, err, "an exempt namespace needs no policy")
	})
}

// untilPolicy waits until the API server enforces both policies.
func untilPolicy(t *testing.T, w *world) {
	t.Helper()
	b := newBench(t, w, nil)
	b.pod(byHand)
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		pod := gen.Pod("forged", gen.InNamespace(b.ns))
		pod.Annotations = map[string]string{"binder.prebind.dev/attempt": "mine"}
		_, err := b.client.CoreV1().Pods(b.ns).Create(t.Context(), pod, dry)
		assert.True(c, apierrors.IsForbidden(err), "%v", err)
		binding := b.binding("node-1")
		binding.Annotations = map[string]string{"topology.prebind.dev/zone": "mine"}
		// The pod has another UID, so no bind succeeds. The policy allows dry runs.
		binding.UID = "other"
		err = b.client.CoreV1().Pods(b.ns).Bind(t.Context(), binding, metav1.CreateOptions{})
		assert.True(c, apierrors.IsForbidden(err), "%v", err)
	}, patience, 100*time.Millisecond, "the policies should be in force")
}

// metadata lists annotations of a user's pod, and whether only Prebind may write them.
var metadata = map[string]struct {
	annotation, label string
	forged            bool
}{
	"topology":           {annotation: "topology.prebind.dev/zone", forged: true},
	"topology label":     {label: "topology.prebind.dev/rack", forged: true},
	"node-info":          {annotation: "node-info.prebind.dev/instance-type", forged: true},
	"node-info label":    {label: "node-info.prebind.dev/instance-type", forged: true},
	"bind-info":          {annotation: bindInfo + "time", forged: true},
	"device-info":        {annotation: "device-info.prebind.dev/devices", forged: true},
	"attempt":            {annotation: "binder.prebind.dev/attempt", forged: true},
	"BindPolicy":         {annotation: "rack.policy.prebind.dev/rack", forged: true},
	"BindPolicy label":   {label: "rack.policy.prebind.dev/rack", forged: true},
	"timeout":            {annotation: "binder.prebind.dev/timeout"},
	"require":            {annotation: "binder.prebind.dev/require"},
	"node-state":         {annotation: "node-state.prebind.dev/expect"},
	"node-ready":         {annotation: "node-ready.prebind.dev/timeout"},
	"device":             {annotation: "device.prebind.dev/gpu"},
	"another's":          {annotation: "topology.example.com/zone"},
	"another's prefix":   {annotation: "mytopology.prebind.dev/zone"},
	"Kubernetes's label": {label: "topology.kubernetes.io/zone"},
}

func testPolicyCreate(t *testing.T, w *world) {
	b := newBench(t, w, nil)
	for name, tc := range metadata {
		t.Run(name, func(t *testing.T) {
			pod := gen.Pod("", gen.InNamespace(b.ns), gen.Scheduler(byHand))
			pod.GenerateName = "pod-"
			if tc.annotation != "" {
				pod.Annotations = map[string]string{tc.annotation: "mine"}
			} else {
				pod.Labels = map[string]string{tc.label: "mine"}
			}
			_, err := b.client.CoreV1().Pods(b.ns).Create(t.Context(), pod, metav1.CreateOptions{})
			assertForged(t, err, tc.forged, tc.annotation+tc.label)
		})
	}
	onNode := gen.Pod("on-node", gen.InNamespace(b.ns), gen.BoundTo("node-1"), gen.Annotation("device.prebind.dev/gpu", "GPU-1"))
	_, err := b.client.CoreV1().Pods(b.ns).Create(t.Context(), onNode, metav1.CreateOptions{})
	assert.True(t, apierrors.IsForbidden(err), "the pod would take a device that another one has: %v", err)
}

func (b *bench) patchMetadata(field, key, value, subresource string) error {
	patch := fmt.Sprintf(`{"metadata":{%q:{%q:%s}}}`, field, key, value)
	var subresources []string
	if subresource != "" {
		subresources = append(subresources, subresource)
	}
	_, err := b.client.CoreV1().Pods(b.ns).Patch(b.t.Context(), "pod", types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
	return err
}

func assertForged(t *testing.T, err error, forged bool, key string) {
	t.Helper()
	if !forged {
		assert.NoError(t, err)
		return
	}
	assert.True(t, apierrors.IsForbidden(err), "the request should be rejected: %v", err)
	assert.ErrorContains(t, err, "only Prebind writes "+key+": remove it")
}

// Only listed users may bind pods, because the policy sees the Binding after Prebind has added its annotations.
func testPolicyBind(t *testing.T, w *world) {
	client := userClient(t, w, "mallory")
	for name, tc := range map[string]struct {
		post func(b *bench, pod *corev1.Pod) error
		// fails is set if the API server rejects the request.
		fails bool
	}{
		"listed": {post: func(b *bench, pod *corev1.Pod) error {
			return userClient(b.t, w, kubeScheduler).CoreV1().Pods(b.ns).Bind(b.t.Context(), gen.Binding(pod, "node-1"), metav1.CreateOptions{})
		}},
		"not listed": {fails: true, post: func(b *bench, pod *corev1.Pod) error {
			return client.CoreV1().Pods(b.ns).Bind(b.t.Context(), gen.Binding(pod, "node-1"), metav1.CreateOptions{})
		}},
		"not listed, legacy path": {fails: true, post: func(b *bench, pod *corev1.Pod) error {
			return client.CoreV1().RESTClient().Post().Namespace(b.ns).Resource("bindings").Body(gen.Binding(pod, "node-1")).Do(b.t.Context()).Error()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, w, nil)
			err := tc.post(b, b.podWith(byHand))
			if tc.fails {
				assert.True(t, apierrors.IsForbidden(err), "the request should be rejected: %v", err)
				assert.ErrorContains(t, err, "mallory is not among the schedulers that may bind pods with")
				return
			}
			require.NoError(t, err)
			b.assertTopology(b.untilBound())
		})
	}
	b := newBench(t, w, nil)
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	assert.NoError(t, client.CoreV1().Pods(b.ns).Bind(t.Context(), gen.Binding(b.podWith(byHand), "node-1"), dry), "a dry run writes nothing")
}

// userClient returns a client of a user with RBAC permissions to bind pods.
func userClient(t *testing.T, w *world, name string) kubernetes.Interface {
	t.Helper()
	(&bench{world: w, t: t}).kubectl("create", "clusterrolebinding", "e2e-"+name, "--clusterrole="+kubeScheduler, "--user="+name)
	config, err := w.cluster.UserConfig(name)
	require.NoError(t, err)
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return client
}
