// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
)

const (
	// pool is the label of nodes and pods with the workload that they belong to.
	pool = "e2e.prebind.dev/pool"
	// placement is a BindPolicy that copies the rack of the node to the pods of the workloads.
	placement = `
matchConstraints: {namespaceSelector: {matchLabels: {e2e.prebind.dev/living: "yes"}}, includeDaemonSetPods: true}
mutations: {annotations: [{key: rack, valueExpression: "node.metadata.labels['` + cluster.RackLabel + `']"}]}
`
	livingConfig = configHead + `prebindPlugins: ['*', announce, node-ready, start-limit]
arguments:
  node-ready:
    agents:
    - {namespace: agents, selector: app=cni}
  start-limit: {limit: 2, wait: 2m, startTimeout: 1h}
`
	// inUse is the time within which workloads must settle. It is shorter than patience, so that a pod that is bound only after a
	// timeout of Prebind counts as stuck.
	inUse = 90 * time.Second
)

// living is a control plane whose pods live: kube-controller-manager creates them, kube-scheduler binds them, and kwok starts and
// ends them.
type living struct {
	*world
	mu sync.Mutex
	// workloads contains the namespaces of all workloads.
	workloads []*workload
	// killed is the time at which a replica was killed.
	killed time.Time
	// agents contains the nodes whose agent is ready, seen the bound pods, and tooEarly the pods that were bound to other nodes.
	agents   map[string]bool
	seen     map[types.UID]bool
	tooEarly []string
}

// workload is a namespace with pods that run on nodes of one pool.
type workload struct {
	*bench
	living *living
	pool   string
}

// TestLivingWorkloads runs the workloads of a cluster through their lives: creation, scaling, updates, evictions, drained and
// deleted nodes. Real controllers create and delete the pods. No pod may get stuck, and nothing may remain of deleted pods.
func TestLivingWorkloads(t *testing.T) {
	t.Parallel()
	l := newLiving(t)
	t.Run("workloads", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T, *living){
			"StatefulSet": testStatefulSet, "Jobs": testJobs, "Deployment with a disruption budget": testDeployment, "DaemonSet": testDaemonSet,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, l)
			})
		}
	})
	if t.Failed() {
		return
	}
	t.Run("all binds succeeded in time", l.testBinds)
	t.Run("nothing remains", l.testNothingRemains)
}

func newLiving(t *testing.T) *living {
	t.Helper()
	o := install.Options{Binary: shared.prebind.Binary(), Cluster: ownCluster(t, cluster.Options{
		Audit: true, Kwok: true, ExtraArgs: map[string][]string{cluster.Kwok: {"--start-delay=1s"}},
	})}
	w, err := newWorldWith(t.Context(), o, 0, "--shutdown-delay=1s")
	require.NoError(t, err)
	w.killAfter(t)
	require.NoError(t, w.prebind.AddComponents(t.Context(), "plugins/announce", "plugins/node-ready", "plugins/policy"))
	require.NoError(t, w.prebind.SetConfig(t.Context(), livingConfig))
	for range 2 {
		_, err := w.start(t.Context())
		require.NoError(t, err)
	}
	l := &living{world: w, agents: map[string]bool{}, seen: map[types.UID]bool{}}
	l.watchPods(t)
	_, err = w.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: agents}}, metav1.CreateOptions{})
	require.NoError(t, err)
	w.createDaemonSet(t, agents, "cni", nil)
	p := newPolicies(t, w)
	p.untilReady(p.post(parsePolicy(t, "placement", placement)), metav1.ConditionTrue)
	w.untilMetric(t, `prebind_policies{state="in_force"} 1`)
	return l
}

// watchPods observes the pods of all namespaces, in the order of the API server.
func (l *living) watchPods(t *testing.T) {
	t.Helper()
	events, err := l.client.CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	var reads sync.WaitGroup
	reads.Go(func() {
		for e := range events.ResultChan() {
			if pod, ok := e.Object.(*corev1.Pod); ok {
				l.note(pod, e.Type == watch.Deleted)
			}
		}
	})
	t.Cleanup(func() {
		events.Stop()
		reads.Wait()
	})
}

// note records an agent that is ready, or a pod of a workload that was bound before the agent was ready. Pods of DaemonSets do not
// wait for agents.
func (l *living) note(pod *corev1.Pod, deleted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	node, owner := pod.Spec.NodeName, metav1.GetControllerOf(pod)
	switch {
	case node == "" || owner == nil || pod.Namespace == install.Namespace:
	case pod.Namespace == agents:
		l.agents[node] = !deleted && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
	case owner.Kind != "DaemonSet" && !l.seen[pod.UID]:
		l.seen[pod.UID] = true
		if !l.agents[node] {
			l.tooEarly = append(l.tooEarly, pod.Namespace+"/"+pod.Name+" on "+node)
		}
	}
}

// workload creates a namespace, and a pool with this number of nodes.
func (l *living) workload(t *testing.T, name string, nodes int) *workload {
	t.Helper()
	k := &workload{bench: newBench(t, l.world, map[string]string{"e2e.prebind.dev/living": "yes"}), living: l, pool: name}
	l.mu.Lock()
	l.workloads = append(l.workloads, k)
	l.mu.Unlock()
	k.addNodes(cluster.Nodes(name, nodes, k.inPool())...)
	return k
}

func (k *workload) inPool() cluster.NodeOption {
	return cluster.WithLabels(map[string]string{pool: k.pool})
}

// addNodes creates nodes, and registers the CSI driver of the test provisioner on them.
func (k *workload) addNodes(nodes ...*corev1.Node) {
	k.t.Helper()
	require.NoError(k.t, cluster.CreateNodes(k.t.Context(), k.client, nodes...))
	for _, node := range nodes {
		_, err := k.client.StorageV1().CSINodes().Create(k.t.Context(), &storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: node.Name},
			Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: cluster.ProvisionerName, NodeID: node.Name}}},
		}, metav1.CreateOptions{})
		require.NoError(k.t, err)
	}
}

// template returns the pods of a workload. Prebind binds their volumes.
func (k *workload) template(options ...gen.PodOption) corev1.PodTemplateSpec {
	pod := gen.Pod("", append(options, gen.Label("app", k.pool), gen.NodeSelector(pool, k.pool), gen.Scheduler(cluster.NoPreBindScheduler))...)
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels, Annotations: pod.Annotations}, Spec: pod.Spec}
}

// selector selects all pods of the workload.
func (k *workload) selector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": k.pool}}
}

// pods returns all pods of the workload.
func (k *workload) pods() []corev1.Pod {
	k.t.Helper()
	list, err := k.client.CoreV1().Pods(k.ns).List(k.t.Context(), metav1.ListOptions{})
	require.NoError(k.t, err)
	return list.Items
}

// eventually waits until the condition holds.
func (k *workload) eventually(what string, condition func(c *assert.CollectT)) {
	k.t.Helper()
	began := time.Now()
	if !assert.EventuallyWithT(k.t, condition, inUse, again/5, what) {
		require.FailNow(k.t, "not in time: "+what, "events: %q", k.allEvents())
	}
	k.t.Logf("%s after %s", what, time.Since(began).Round(100*time.Millisecond))
}

// assertPrepared checks that the metadata of each pod is that of its node.
func (k *workload) assertPrepared(pods []corev1.Pod) {
	k.t.Helper()
	for i := range pods {
		pod := &pods[i]
		k.assertTopology(pod)
		assert.Equal(k.t, pod.Annotations["topology.prebind.dev/rack"], pod.Annotations["placement.policy.prebind.dev/rack"], "the annotation of the policy on %s", pod.Name)
		assert.Empty(k.t, pod.Status.NominatedNodeName, "announce should have cleared the field of %s", pod.Name)
	}
}

// assertGranted checks that the devices of the running pods are granted to them.
func (k *workload) assertGranted(pods []corev1.Pod) {
	k.t.Helper()
	for i := range pods {
		pod := &pods[i]
		k.untilRecord(pod.Spec.NodeName, "confirmed for "+pod.Name, func(data map[string]string) bool {
			entry := grantedTo(data, pod.UID)
			return entry != nil && entry.Bound && len(entry.Grants) == 1 && entry.Grants[0].Attempt == pod.Annotations[attemptKey]
		})
	}
}

// kill kills a replica.
func (l *living) kill(t *testing.T, r *install.Replica) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	require.True(t, l.killed.IsZero())
	l.killed = time.Now()
	require.NoError(t, r.Kill())
}

// testBinds checks the events of all workloads, and the order of binds. Only the calls in progress of a killed replica may fail.
func (l *living) testBinds(t *testing.T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range l.workloads {
		list, err := l.client.CoreV1().Events(k.ns).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		for _, e := range list.Items {
			at := e.LastTimestamp.Time
			if at.IsZero() {
				at = e.EventTime.Time
			}
			cut := strings.Contains(e.Message, "failed calling webhook") && at.Sub(l.killed).Abs() < aMoment
			// During an update, the controller of StatefulSets may delete a pod right after its creation, before or during its bind.
			deleted := strings.Contains(e.Message, "discard the Binding") || strings.Contains(e.Message, "canceled: the pod is deleted")
			stale := deleted && !l.seen[e.InvolvedObject.UID]
			byPrebind := e.Reason == "BindRefused" || e.Reason == "PreBindRolledBack" || e.Reason == "FailedScheduling" && strings.Contains(e.Message, "webhook")
			assert.False(t, byPrebind && !cut && !stale, "%s of %s at %s: %s", e.Reason, e.InvolvedObject.Name, at, e.Message)
		}
	}
	assert.NotEmpty(t, l.seen)
	assert.Empty(t, l.tooEarly, "pods that node-ready should have delayed until the agent of their node was ready")
}

// testNothingRemains deletes all workloads, and checks that Prebind has forgotten them.
func (l *living) testNothingRemains(t *testing.T) {
	for _, k := range l.workloads {
		k.t = t
		k.kubectl("delete", "statefulsets,deployments,daemonsets,jobs,poddisruptionbudgets", "--all", "--namespace="+k.ns)
	}
	for _, k := range l.workloads {
		k.eventually("no pods of "+k.pool, func(c *assert.CollectT) { assert.Empty(c, k.pods()) })
	}
	for _, line := range []string{
		"prebind_holds 0", `prebind_attempts{phase="preparing"} 0`, `prebind_attempts{phase="prepared"} 0`, `prebind_attempts{phase="undoing"} 0`,
		"prebind_start_limit_reserved 0",
	} {
		l.untilMetric(t, line)
	}
	claims, err := l.client.CoreV1().PersistentVolumeClaims("").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, claim := range claims.Items {
		assert.NotContains(t, fmt.Sprint(claim.Annotations, claim.Labels, claim.Finalizers), "prebind.dev/", "marks on claim %s", claim.Name)
	}
	// A new leader cleans up the records immediately, and later every two minutes.
	for _, r := range l.prebind.Replicas() {
		require.NoError(t, r.Process.Stop())
		require.NoError(t, r.Process.Start())
		require.NoError(t, r.WaitReady(t.Context()))
	}
	last := l.workloads[0]
	last.eventually("no holders of devices", func(c *assert.CollectT) {
		list, err := last.records().List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=prebind"})
		require.NoError(c, err)
		for _, record := range list.Items {
			delete(record.Data, "node")
			assert.Empty(c, record.Data, record.Name)
		}
	})
}
