// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
)

// bench is a separate namespace for a test. Its methods create objects in it.
type bench struct {
	*world
	t  *testing.T
	ns string
}

func newBench(t *testing.T, w *world, labels map[string]string) *bench {
	t.Helper()
	if w == shared {
		takeTurn(t)
	}
	ns, err := w.client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-", Labels: labels}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, cluster.WaitForPods(t.Context(), w.client, ns.Name))
	return &bench{world: w, t: t, ns: ns.Name}
}

// class creates a StorageClass for this test only.
func (b *bench) class(provisioner string, options ...gen.ClassOption) string {
	b.t.Helper()
	class := gen.StorageClass("", provisioner, options...)
	class.GenerateName = "e2e-"
	class, err := b.client.StorageV1().StorageClasses().Create(b.t.Context(), class, metav1.CreateOptions{})
	require.NoError(b.t, err)
	return class.Name
}

// dynamic creates a WaitForFirstConsumer class with the provisioning time.
func (b *bench) dynamic(delay string) string {
	return b.class(cluster.ProvisionerName, gen.Parameter("delay", delay))
}

// static creates a WaitForFirstConsumer class with a volume of each size on the node. It also returns the names of the volumes.
func (b *bench) static(node string, sizes ...string) (class string, volumes []string) {
	b.t.Helper()
	class = b.class(volume.NotSupportedProvisioner)
	for _, size := range sizes {
		pv := gen.Volume("", gen.VolumeOfClass(class), gen.Capacity(size), gen.OnNode(node))
		pv.GenerateName = "e2e-"
		pv, err := b.client.CoreV1().PersistentVolumes().Create(b.t.Context(), pv, metav1.CreateOptions{})
		require.NoError(b.t, err)
		volumes = append(volumes, pv.Name)
	}
	for _, name := range volumes {
		untilRead(b, b.client.CoreV1().PersistentVolumes().Get, name, "available", func(pv *corev1.PersistentVolume) bool {
			return pv.Status.Phase == corev1.VolumeAvailable
		})
	}
	return class, volumes
}

func (b *bench) claim(name, class string) {
	b.t.Helper()
	require.NoError(b.t, b.createClaim(name, class))
}

// createClaim is safe for concurrent use.
func (b *bench) createClaim(name, class string) error {
	claim := gen.Claim(name, gen.InNamespace(b.ns), gen.OfClass(class))
	_, err := b.client.CoreV1().PersistentVolumeClaims(b.ns).Create(b.t.Context(), claim, metav1.CreateOptions{})
	return err
}

// pod creates the pod "pod" with the claims for the scheduler with the name.
func (b *bench) pod(scheduler string, claims ...string) {
	b.t.Helper()
	b.podWith(scheduler, usesClaims(claims)...)
}

// podWith creates the pod "pod" with the options.
func (b *bench) podWith(scheduler string, options ...gen.PodOption) *corev1.Pod {
	b.t.Helper()
	pod, err := b.createPod("pod", scheduler, options...)
	require.NoError(b.t, err)
	return pod
}

// createPod is safe for concurrent use.
func (b *bench) createPod(name, scheduler string, options ...gen.PodOption) (*corev1.Pod, error) {
	options = append([]gen.PodOption{gen.InNamespace(b.ns), gen.Scheduler(scheduler), gen.EndsAtOnce()}, options...)
	return b.client.CoreV1().Pods(b.ns).Create(b.t.Context(), gen.Pod(name, options...), metav1.CreateOptions{})
}

func usesClaims(claims []string) []gen.PodOption {
	var options []gen.PodOption
	for _, claim := range claims {
		options = append(options, gen.UsesClaim(claim))
	}
	return options
}

// bindByHand posts a Binding of the pod; client-go repeats it on 429.
func (b *bench) bindByHand(binding *corev1.Binding) error {
	return b.client.CoreV1().Pods(b.ns).Bind(b.t.Context(), binding, metav1.CreateOptions{})
}

// binding returns a Binding of the pod "pod" to the node.
func (b *bench) binding(node string, options ...gen.BindingOption) *corev1.Binding {
	return gen.Binding(gen.Pod("pod", gen.InNamespace(b.ns)), node, options...)
}

// patience is the timeout of waits.
const patience = cluster.Patience

// attemptKey is the annotation with the attempt that bound the pod.
const attemptKey = "binder.prebind.dev/attempt"

// reads is the pause between two reads of an object that a test waits for.
const reads = 50 * time.Millisecond

// until reads the pod until the condition holds, and returns it.
func (b *bench) until(what string, condition func(*corev1.Pod) bool) *corev1.Pod {
	b.t.Helper()
	return untilRead(b, b.client.CoreV1().Pods(b.ns).Get, "pod", what, condition)
}

// untilRead reads an object until the condition holds, and returns it.
func untilRead[T any](b *bench, get func(context.Context, string, metav1.GetOptions) (T, error), name, what string, condition func(T) bool) T {
	b.t.Helper()
	var object T
	err := wait.PollUntilContextTimeout(b.t.Context(), reads, patience, true, func(ctx context.Context) (bool, error) {
		var err error
		object, err = get(ctx, name, metav1.GetOptions{})
		return err == nil && condition(object), nil
	})
	require.NoError(b.t, err, "waiting for the %T %s to be %s: %v; events: %v", object, name, what, object, b.allEvents())
	return object
}

func (b *bench) untilBound() *corev1.Pod {
	b.t.Helper()
	return b.until("bound", func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" })
}

func (b *bench) getPod() *corev1.Pod {
	b.t.Helper()
	pod, err := b.client.CoreV1().Pods(b.ns).Get(b.t.Context(), "pod", metav1.GetOptions{})
	require.NoError(b.t, err)
	return pod
}

func (b *bench) getClaim(name string) *corev1.PersistentVolumeClaim {
	b.t.Helper()
	claim, err := b.client.CoreV1().PersistentVolumeClaims(b.ns).Get(b.t.Context(), name, metav1.GetOptions{})
	require.NoError(b.t, err)
	return claim
}

// assertNotBound checks that the pod has no node, and returns it.
func (b *bench) assertNotBound() *corev1.Pod {
	b.t.Helper()
	pod := b.getPod()
	assert.Empty(b.t, pod.Spec.NodeName, "the pod should not be bound")
	return pod
}

// events returns "reason: message" of the pod's events.
func (b *bench) events() []string {
	return b.listEvents(fields.OneTermEqualSelector("involvedObject.name", "pod").String())
}

// allEvents returns the events of all objects of the test.
func (b *bench) allEvents() []string { return b.listEvents("") }

func (b *bench) listEvents(selector string) []string {
	list, err := b.client.CoreV1().Events(b.ns).List(context.WithoutCancel(b.t.Context()), metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		return []string{"cannot be read: " + err.Error()}
	}
	var out []string
	for _, e := range list.Items {
		out = append(out, e.Reason+": "+e.Message)
	}
	return out
}

// audited returns the audit events of the Bindings in the namespace, in order. The API server logs a Binding before its client gets the answer,
// but after the pod is bound. audited therefore waits for the Bindings of all pods that are bound.
func (b *bench) audited() []cluster.AuditEvent {
	b.t.Helper()
	var out []cluster.AuditEvent
	require.EventuallyWithT(b.t, func(c *assert.CollectT) {
		pods, err := b.client.CoreV1().Pods(b.ns).List(b.t.Context(), metav1.ListOptions{})
		require.NoError(c, err)
		events, err := b.cluster.AuditEvents()
		require.NoError(c, err)
		out = slices.DeleteFunc(events, func(e cluster.AuditEvent) bool { return e.ObjectRef == nil || e.ObjectRef.Namespace != b.ns })
		bound := 0
		for _, e := range out {
			if e.ResponseStatus != nil && e.ResponseStatus.Code == http.StatusCreated && !strings.Contains(e.RequestURI, "dryRun=") {
				bound++
			}
		}
		assert.GreaterOrEqual(c, bound, len(slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return !boundByBinding(&p) })))
	}, patience, 20*time.Millisecond, "the API server should log the Bindings of all bound pods")
	return out
}

// boundByBinding reports whether a Binding bound the pod. A pod that was created with a node lacks the condition.
func boundByBinding(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue
	})
}

// decisions returns Prebind's decision on each Binding of the pod, in order, from the API server's audit log.
func (b *bench) decisions() []string {
	b.t.Helper()
	var out []string
	for _, e := range b.audited() {
		if said, ok := e.Annotations[install.WebhookName+"/decision"]; ok {
			out = append(out, said)
		}
	}
	return out
}

// assertTopology checks the topology annotations of the pod.
func (b *bench) assertTopology(pod *corev1.Pod) {
	b.t.Helper()
	node := b.node(pod.Spec.NodeName)
	for key, label := range map[string]string{
		"zone": corev1.LabelTopologyZone, "region": corev1.LabelTopologyRegion, "hostname": corev1.LabelHostname, "rack": cluster.RackLabel,
	} {
		require.NotEmpty(b.t, node.Labels[label], "the node should have the label %s", label)
		assert.Equal(b.t, node.Labels[label], pod.Annotations["topology.prebind.dev/"+key], "the annotation for %s", label)
	}
}

// assertClaimBound checks that the claim is completely bound to a volume that the node can use.
func (b *bench) assertClaimBound(name, node string) *corev1.PersistentVolumeClaim {
	b.t.Helper()
	claim := b.getClaim(name)
	require.NotEmpty(b.t, claim.Spec.VolumeName, "the claim %s should have a volume", name)
	assert.Contains(b.t, claim.Annotations, volume.AnnBindCompleted)
	pv, err := b.client.CoreV1().PersistentVolumes().Get(b.t.Context(), claim.Spec.VolumeName, metav1.GetOptions{})
	require.NoError(b.t, err)
	if assert.NotNil(b.t, pv.Spec.ClaimRef) {
		assert.Equal(b.t, claim.UID, pv.Spec.ClaimRef.UID)
	}
	assert.NoError(b.t, volume.CheckNodeAffinity(pv, b.node(node).Labels))
	return claim
}

// assertNeverFailed checks that the scheduler never reported the pod.
func (b *bench) assertNeverFailed() {
	b.t.Helper()
	for _, e := range b.events() {
		// On a busy machine, kube-scheduler may observe a pod before its claim.
		if strings.Contains(e, "persistentvolumeclaim") && strings.Contains(e, "not found") {
			continue
		}
		assert.NotContains(b.t, e, "FailedScheduling")
	}
}

// says reports whether one of the events contains all of the words.
func says(events []string, words ...string) bool {
	return slices.ContainsFunc(events, func(e string) bool {
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(e, w) })
	})
}

// again is the pause of a scheduler before it retries.
const again = 500 * time.Millisecond

// label is a label of the nodes that this test's pod may use. With it, the test controls the choice of kube-scheduler.
func (b *bench) label() string { return "e2e.prebind.dev/" + b.ns }

// steered limits a pod to the allowed nodes.
func (b *bench) steered() gen.PodOption { return gen.NodeSelector(b.label(), "yes") }

// ownNode creates a node for this test's pods only, and allows it. Pods need the toleration.
func (b *bench) ownNode(name string) (node string, toleration gen.PodOption) {
	b.t.Helper()
	node = name + "-" + b.ns
	require.NoError(b.t, cluster.CreateNodes(b.t.Context(), b.client, cluster.Node(node,
		cluster.WithLabels(map[string]string{b.label(): "yes"}),
		cluster.WithTaints(corev1.Taint{Key: b.label(), Effect: corev1.TaintEffectNoSchedule}))))
	b.t.Cleanup(func() {
		_ = b.client.CoreV1().Nodes().Delete(context.WithoutCancel(b.t.Context()), node, metav1.DeleteOptions{})
	})
	return node, gen.Tolerates(b.label())
}

// beginBind binds the pod "pod" to the node like bindByHand, but returns immediately. The channel receives the result of client-go.
func (b *bench) beginBind(node string) <-chan error {
	done := make(chan error, 1)
	go func() { done <- b.bindByHand(b.binding(node)) }()
	return done
}

// end returns the result of beginBind.
func (b *bench) end(done <-chan error) error {
	b.t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		require.FailNow(b.t, "the Binding has no response yet")
		return nil
	}
}

// untilSelected waits for the selected-node of the claim "data", and returns it.
func (b *bench) untilSelected() string {
	b.t.Helper()
	return untilRead(b, b.client.CoreV1().PersistentVolumeClaims(b.ns).Get, "data", "provisioned for a node", func(claim *corev1.PersistentVolumeClaim) bool {
		return claim.Annotations[volume.AnnSelectedNode] != ""
	}).Annotations[volume.AnnSelectedNode]
}

// untilEvent waits for an event of the pod that contains all of the words.
func (b *bench) untilEvent(words ...string) {
	b.t.Helper()
	require.EventuallyWithT(b.t, func(c *assert.CollectT) {
		assert.True(c, says(b.events(), words...), "no event says %q: %q", words, b.events())
	}, patience, 100*time.Millisecond)
}

// deletePod deletes the pod "pod" and waits for the end of the deletion.
func (b *bench) deletePod() {
	b.t.Helper()
	require.NoError(b.t, b.client.CoreV1().Pods(b.ns).Delete(b.t.Context(), "pod", metav1.DeleteOptions{}))
}

// versions returns the resource versions of the pod, a volume and claims, which change with every write.
func (b *bench) versions(pv string, claims ...string) map[string]string {
	b.t.Helper()
	v, err := b.client.CoreV1().PersistentVolumes().Get(b.t.Context(), pv, metav1.GetOptions{})
	require.NoError(b.t, err)
	out := map[string]string{"pod": b.getPod().ResourceVersion, "volume": v.ResourceVersion}
	for _, name := range claims {
		out[name] = b.getClaim(name).ResourceVersion
	}
	return out
}

// listeningClient returns a client, and the warnings that the API server sends to it, one in each line.
func (b *bench) listeningClient() (kubernetes.Interface, *bytes.Buffer) {
	b.t.Helper()
	warnings := &bytes.Buffer{}
	config := b.cluster.Config()
	config.WarningHandler = rest.NewWarningWriter(warnings, rest.WarningWriterOptions{})
	client, err := kubernetes.NewForConfig(config)
	require.NoError(b.t, err)
	return client, warnings
}
