// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// revision is an annotation of pod templates.
const revision = "example.com/revision"

// statefulSet is a StatefulSet with one volume per pod. Its pods use the same exclusive device of their nodes, and no two of them
// may be on one node or more than one apart in their zones.
type statefulSet struct {
	*workload
	// volumes contains the volumes by claim.
	volumes map[string]string
}

// testStatefulSet scales and updates a StatefulSet to the size of its pool, so that each pod must get the device that the pod before
// it had. A replica is killed during the update.
func testStatefulSet(t *testing.T, l *living) {
	s := &statefulSet{workload: l.workload(t, "data", 6), volumes: map[string]string{}}
	s.create(3)
	s.untilRunning(3, "1")
	s.scale(6)
	s.untilRunning(6, "1")

	s.kubectl("patch", "statefulset", "data", "--namespace="+s.ns, `--patch={"spec":{"template":{"metadata":{"annotations":{"`+revision+`":"2"}}}}}`)
	s.eventually("two pods are updated", func(c *assert.CollectT) {
		set, err := s.client.AppsV1().StatefulSets(s.ns).Get(t.Context(), "data", metav1.GetOptions{})
		require.NoError(c, err)
		assert.NotEqual(c, set.Status.CurrentRevision, set.Status.UpdateRevision)
		assert.GreaterOrEqual(c, set.Status.UpdatedReplicas, int32(2))
	})
	doomed := l.prebind.Replicas()[0]
	l.kill(t, doomed)
	s.untilRunning(6, "2")
	require.NoError(t, doomed.Restart(t.Context()))

	removed := s.pod("data-4")
	s.scale(4)
	s.untilRunning(4, "2")
	// The only other pod in the zone moves to the node of the removed one.
	drained := s.inZoneOf(removed)
	s.kubectl("drain", drained.Spec.NodeName, "--ignore-daemonsets")
	s.untilRunning(4, "2")
	assert.Equal(t, removed.Spec.NodeName, s.pod(drained.Name).Spec.NodeName)
	s.uncordon(drained.Spec.NodeName)
	s.scale(6)
	s.untilRunning(6, "2")
	assert.Equal(t, drained.Spec.NodeName, s.pod(removed.Name).Spec.NodeName)
	s.assertGranted(s.pods())
}

func (s *statefulSet) create(replicas int32) {
	s.t.Helper()
	template := s.template(gpu("GPU-0"), nodeLock(), gen.Annotation(revision, "1"))
	template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{LabelSelector: s.selector(), TopologyKey: corev1.LabelHostname}},
	}}
	template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: s.selector(),
	}}
	template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	claim := gen.Claim("data", gen.OfClass(s.dynamic("1s")))
	_, err := s.client.AppsV1().StatefulSets(s.ns).Create(s.t.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, Selector: s.selector(), Template: template,
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: claim.Name}, Spec: claim.Spec}},
		},
	}, metav1.CreateOptions{})
	require.NoError(s.t, err)
}

func (s *statefulSet) scale(replicas int) {
	s.t.Helper()
	s.kubectl("scale", "statefulset", "data", "--namespace="+s.ns, "--replicas="+strconv.Itoa(replicas))
}

func (s *statefulSet) pod(name string) *corev1.Pod {
	s.t.Helper()
	pod, err := s.client.CoreV1().Pods(s.ns).Get(s.t.Context(), name, metav1.GetOptions{})
	require.NoError(s.t, err)
	return pod
}

// inZoneOf returns the pod in the zone of a removed one.
func (s *statefulSet) inZoneOf(removed *corev1.Pod) *corev1.Pod {
	s.t.Helper()
	const zone = "topology.prebind.dev/zone"
	pods := s.pods()
	i := slices.IndexFunc(pods, func(pod corev1.Pod) bool { return pod.Annotations[zone] == removed.Annotations[zone] })
	require.GreaterOrEqual(s.t, i, 0)
	return &pods[i]
}

// untilRunning waits until all pods have the revision and run, and checks them and their volumes.
func (s *statefulSet) untilRunning(replicas int, version string) {
	s.t.Helper()
	s.eventually(fmt.Sprintf("%d pods with revision %s run", replicas, version), func(c *assert.CollectT) {
		set, err := s.client.AppsV1().StatefulSets(s.ns).Get(s.t.Context(), "data", metav1.GetOptions{})
		require.NoError(c, err)
		assert.Equal(c, set.Generation, set.Status.ObservedGeneration)
		assert.Equal(c, replicas, int(set.Status.ReadyReplicas))
		assert.Equal(c, set.Status.UpdateRevision, set.Status.CurrentRevision)
		pods := s.pods()
		assert.Len(c, pods, replicas)
		for _, pod := range pods {
			assert.Equal(c, version, pod.Annotations[revision])
			assert.Nil(c, pod.DeletionTimestamp)
			assert.Equal(c, corev1.PodRunning, pod.Status.Phase)
		}
	})
	pods := s.pods()
	s.assertPrepared(pods)
	for _, pod := range pods {
		claim := s.assertClaimBound("data-"+pod.Name, pod.Spec.NodeName)
		if s.volumes[claim.Name] == "" {
			s.volumes[claim.Name] = claim.Spec.VolumeName
		}
		assert.Equal(s.t, s.volumes[claim.Name], claim.Spec.VolumeName, "the volume of %s should stay", claim.Name)
	}
}

// testJobs completes two Jobs, each on one node. The pods of one use the same device, one after another. The pods of the other start
// together, so that their binds wait for slots of start-limit.
func testJobs(t *testing.T, l *living) {
	k := l.workload(t, "jobs", 2)
	const turns, crowd = 5, 8
	k.createJob("turns", "jobs-1", turns, 1, gpu("GPU-1"), nodeLock())
	k.createJob("crowd", "jobs-2", crowd, crowd)
	k.untilComplete("crowd", crowd)
	k.untilComplete("turns", turns)
	pods := k.pods()
	assert.Len(t, pods, turns+crowd)
	k.assertPrepared(pods)
	var first, last time.Time
	for i := range pods {
		if at := scheduledAt(&pods[i]).Time; pods[i].Labels[batchv1.JobNameLabel] == "crowd" {
			if first.IsZero() || at.Before(first) {
				first = at
			}
			if at.After(last) {
				last = at
			}
		}
	}
	// At most three of the eight pods start at the same time, for one second.
	assert.GreaterOrEqual(t, last.Sub(first), 2*time.Second, "pods of the crowd should wait for each other")
}

// createJob creates a Job with this number of pods for the node.
func (k *workload) createJob(name, node string, completions, parallelism int32, options ...gen.PodOption) {
	k.t.Helper()
	template := k.template(append(options, gen.NodeSelector(corev1.LabelHostname, node))...)
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	_, err := k.client.BatchV1().Jobs(k.ns).Create(k.t.Context(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       batchv1.JobSpec{Completions: &completions, Parallelism: &parallelism, BackoffLimit: new(int32(0)), Template: template},
	}, metav1.CreateOptions{})
	require.NoError(k.t, err)
}

// untilComplete waits until all pods of the Job have succeeded.
func (k *workload) untilComplete(name string, completions int32) {
	k.t.Helper()
	k.eventually("Job "+name+" is complete", func(c *assert.CollectT) {
		job, err := k.client.BatchV1().Jobs(k.ns).Get(k.t.Context(), name, metav1.GetOptions{})
		require.NoError(c, err)
		assert.NotNil(c, job.Status.CompletionTime)
		assert.Equal(c, completions, job.Status.Succeeded)
	})
}

// testDeployment evicts pods of a Deployment within its disruption budget, and drains a node.
func testDeployment(t *testing.T, l *living) {
	k := l.workload(t, "web", 3)
	const replicas = 4
	k.createDeployment(replicas, gpu("GPU-2:0.2"))
	_, err := k.client.PolicyV1().PodDisruptionBudgets(k.ns).Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: k.selector(), MinAvailable: new(intstr.FromInt32(replicas - 1))},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	k.untilAvailable(replicas)
	k.eventually("the budget allows a disruption", func(c *assert.CollectT) {
		budget, err := k.client.PolicyV1().PodDisruptionBudgets(k.ns).Get(t.Context(), "web", metav1.GetOptions{})
		require.NoError(c, err)
		assert.Equal(c, int32(1), budget.Status.DisruptionsAllowed)
	})

	pods := k.pods()
	require.NoError(t, k.evict(&pods[0]))
	assert.True(t, apierrors.IsTooManyRequests(k.evict(&pods[1])), "the budget should protect the other pods")
	for i := range pods[1:] {
		k.eventually("the next pod may be evicted", func(c *assert.CollectT) { require.NoError(c, k.evict(&pods[i+1])) })
	}
	k.untilAvailable(replicas, pods...)

	node := k.pods()[0].Spec.NodeName
	k.kubectl("drain", node, "--ignore-daemonsets", "--timeout="+inUse.String())
	k.untilAvailable(replicas)
	for _, pod := range k.pods() {
		assert.NotEqual(t, node, pod.Spec.NodeName, "%s should have left the drained node", pod.Name)
	}
	k.uncordon(node)
	k.assertGranted(k.pods())
}

func (k *workload) createDeployment(replicas int32, options ...gen.PodOption) {
	k.t.Helper()
	_, err := k.client.AppsV1().Deployments(k.ns).Create(k.t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: k.pool},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Selector: k.selector(), Template: k.template(options...)},
	}, metav1.CreateOptions{})
	require.NoError(k.t, err)
}

// evict requests the eviction of the pod.
func (k *workload) evict(pod *corev1.Pod) error {
	return k.client.PolicyV1().Evictions(k.ns).Evict(k.t.Context(), &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
	})
}

// untilAvailable waits until the Deployment has exactly this number of pods, all of them run, and none of them is one of the old
// ones. It checks the pods.
func (k *workload) untilAvailable(replicas int, old ...corev1.Pod) {
	k.t.Helper()
	gone := map[types.UID]bool{}
	for _, pod := range old {
		gone[pod.UID] = true
	}
	k.eventually(fmt.Sprintf("%d pods of the Deployment run", replicas), func(c *assert.CollectT) {
		pods := k.pods()
		assert.Len(c, pods, replicas)
		for _, pod := range pods {
			assert.Equal(c, corev1.PodRunning, pod.Status.Phase)
			assert.False(c, gone[pod.UID])
		}
	})
	k.assertPrepared(k.pods())
}

// testDaemonSet runs a DaemonSet on all nodes. Pods that wait for a new node are bound when its agent is ready. The node is deleted,
// and its pods run on another node.
func testDaemonSet(t *testing.T, l *living) {
	k := l.workload(t, "edge", 1)
	template := k.template(gpu("GPU-3"))
	delete(template.Spec.NodeSelector, pool)
	_, err := k.client.AppsV1().DaemonSets(k.ns).Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "edge"}, Spec: appsv1.DaemonSetSpec{Selector: k.selector(), Template: template},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	k.untilOnEachNode()

	late := l.workload(t, "late", 0)
	late.createDeployment(2, gpu("GPU-4:0.5"))
	late.eventually("two pods wait for a node", func(c *assert.CollectT) { assert.Len(c, late.pods(), 2) })
	late.addNodes(cluster.Nodes("late", 2, late.inPool())...)
	late.untilAvailable(2)
	k.untilOnEachNode()
	k.assertGranted(k.pods())
	late.assertGranted(late.pods())

	node := late.pods()[0].Spec.NodeName
	k.kubectl("delete", "node", node)
	// kube-controller-manager does the same after up to 80 s.
	k.kubectl("delete", "pods", "--all-namespaces", "--field-selector=spec.nodeName="+node, "--force", "--grace-period=0")
	late.untilAvailable(2)
	for _, pod := range late.pods() {
		assert.NotEqual(t, node, pod.Spec.NodeName)
	}
	late.assertGranted(late.pods())
	k.untilOnEachNode()
}

// untilOnEachNode waits until each node has a running pod of the DaemonSet, and checks the pods.
func (k *workload) untilOnEachNode() {
	k.t.Helper()
	var pods []corev1.Pod
	k.eventually("a pod of the DaemonSet runs on each node", func(c *assert.CollectT) {
		nodes, err := k.client.CoreV1().Nodes().List(k.t.Context(), metav1.ListOptions{})
		require.NoError(c, err)
		var want, got []string
		for _, node := range nodes.Items {
			want = append(want, node.Name)
		}
		pods = k.pods()
		for _, pod := range pods {
			assert.Equal(c, corev1.PodRunning, pod.Status.Phase)
			got = append(got, pod.Spec.NodeName)
		}
		assert.ElementsMatch(c, want, got)
	})
	k.assertPrepared(pods)
}
