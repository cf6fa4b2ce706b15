// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/prebind/prebind/test/cluster"
)

// conformanceRun is a finished run of kubectl prebind conformance.
type conformanceRun struct {
	out, progress string
	code          int
}

// result returns the row of the check.
func (r conformanceRun) result(check string) string {
	for line := range strings.Lines(r.out) {
		if name, rest, _ := strings.Cut(line, " "); name == check {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// conformancePrefix returns the prefix of the namespaces of the test, so that tests in parallel do not see each other's.
func conformancePrefix(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("c-%08x-", crc32.ChecksumIEEE([]byte(t.Name())))
}

const (
	// noResult is the exit code of a run on an overloaded cluster.
	noResult = 3
	// mostRuns is the number of runs until one has a result.
	mostRuns = 5
)

// conformance runs the command with the arguments. It repeats a run that has no result, because other tests overload the cluster.
func conformance(t *testing.T, w *world, args ...string) conformanceRun {
	t.Helper()
	takeTurn(t)
	b := &bench{world: w, t: t}
	for range mostRuns {
		out, progress, code := b.command(append([]string{"conformance", "--namespace-prefix=" + conformancePrefix(t)}, args...)...)
		t.Logf("exit code %d\n%s\n%s", code, out, progress)
		if code != noResult {
			return conformanceRun{out: out, progress: progress, code: code}
		}
	}
	require.FailNow(t, "the command should have a result", "no result in %d runs", mostRuns)
	return conformanceRun{}
}

// assertNothingLeft checks that no object of the test's runs exists.
func assertNothingLeft(t *testing.T, w *world) {
	t.Helper()
	for kind, list := range conformanceObjects(t, w) {
		assert.Empty(t, list, "%s should be removed", kind)
	}
}

// conformanceObjects returns the names of the objects and node labels of the test's runs, by kind.
func conformanceObjects(t *testing.T, w *world) map[string][]string {
	t.Helper()
	out, err := w.cluster.Kubectl(t.Context(), "get", "namespaces,persistentvolumes,storageclasses,validatingadmissionpolicies,validatingadmissionpolicybindings,validatingwebhookconfigurations",
		"-l", "app.kubernetes.io/managed-by=prebind-conformance", "-o", "name").Output()
	require.NoError(t, err)
	found := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		kind, name, _ := strings.Cut(strings.TrimSpace(line), "/")
		if strings.HasPrefix(name, conformancePrefix(t)) {
			found[kind] = append(found[kind], name)
		}
	}
	for kind, template := range map[string]string{
		"nodes":    `go-template={{range .items}}{{range $key, $value := .metadata.labels}}{{$key}}{{"\n"}}{{end}}{{end}}`,
		"csinodes": `go-template={{range .items}}{{range .spec.drivers}}{{.name}}{{"\n"}}{{end}}{{end}}`,
	} {
		out, err = w.cluster.Kubectl(t.Context(), "get", kind, "-o", template).Output()
		require.NoError(t, err)
		for mark := range strings.Lines(string(out)) {
			if strings.HasPrefix(mark, conformancePrefix(t)) {
				found[kind] = append(found[kind], strings.TrimSpace(mark))
			}
		}
	}
	return found
}

// grantDocumented creates the ClusterRole of docs/example, and binds it to a user.
func grantDocumented(t *testing.T, user string) {
	t.Helper()
	role, err := os.ReadFile(filepath.Join("..", "..", "docs", "example", "conformance-role.yaml"))
	require.NoError(t, err)
	b := &bench{world: shared, t: t}
	b.manifest("apply", string(role))
	b.kubectl("create", "clusterrolebinding", user, "--clusterrole=prebind-conformance", "--user="+user)
	require.Eventually(t, func() bool {
		return b.cluster.Kubectl(t.Context(), "auth", "can-i", "list", "nodes", "--as="+user).Run() == nil
	}, patience, again, "the role should be in force")
}

func TestConformance(t *testing.T) {
	t.Parallel()
	const own, user = "small-scheduler", "conformance-user"
	startScheduler(t, shared, own, false)
	grantDocumented(t, user)
	// The small scheduler uses only nodes with the driver of a volume.
	withDrivers := cluster.Nodes("conformance", 2)
	require.NoError(t, cluster.CreateNodes(t.Context(), shared.client, withDrivers...))
	for _, n := range withDrivers {
		_, err := shared.client.StorageV1().CSINodes().Create(t.Context(), &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	tests := map[string]struct {
		scheduler string
		args      []string
		details   map[string]string
	}{
		"kube-scheduler": {
			scheduler: cluster.DefaultScheduler,
			args:      []string{"--no-failure-events"},
			details:   map[string]string{"volume": "the scheduler waited for the volume itself"},
		},
		"a scheduler without support for volumes": {
			scheduler: own,
			args:      []string{"--binding-annotation=" + ownAnnotation, "--as=" + user, "--nodes=" + withDrivers[0].Name + "," + withDrivers[1].Name, "--pod-labels=queue=test"},
			details:   map[string]string{"volume": "Prebind made the bind wait"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			junit := filepath.Join(t.TempDir(), "report.xml")
			r := conformance(t, shared, append([]string{"--scheduler-name=" + tc.scheduler, "--wait=6s", "--junit=" + junit}, tc.args...)...)
			assert.Equal(t, 0, r.code)
			for _, check := range []string{"bind", "annotations", "uid", "wait", "refused", "invalid", "internal", "stale", "volume", "workers", "burst"} {
				assert.Regexp(t, "^PASS .*"+tc.details[check], r.result(check), check)
			}
			content, err := os.ReadFile(junit)
			require.NoError(t, err)
			assert.Contains(t, string(content), `tests="11" failures="0" errors="0"`)
			assertNothingLeft(t, shared)
		})
	}
}

// A scheduler that violates the contract fails the checks for its rules, with advice. The tests of the command contain the violations
// that it finds without webhooks and policies of the API server.
func TestConformance_Violations(t *testing.T) {
	t.Parallel()
	startScheduler(t, shared, "wrong", true)
	checks := map[string]struct{ reason, says, advice string }{
		"uid":      {reason: "the Binding can apply to another pod", says: "pod uid was not bound within 30s", advice: "Set metadata.uid"},
		"wait":     {reason: "the annotations of the scheduler are lost", says: "lacks the annotation " + ownAnnotation, advice: "Post the same annotations"},
		"internal": {reason: "an internal error is not final", says: "pod internal was not bound within 30s", advice: "schedule the pod again, with backoff"},
	}
	for check, v := range checks {
		// In a run of its own, a check without a result is repeated.
		r := conformance(t, shared, "--scheduler-name=wrong", "--wait=6s", "--timeout=30s", "--binding-annotation="+ownAnnotation, "--run=^"+check+"$")
		assert.Equal(t, 1, r.code)
		assert.Regexp(t, "^FAIL .*"+v.says, r.result(check), v.reason)
		_, summary, _ := strings.Cut(r.out, "\n\n")
		assert.Contains(t, summary, check+": ")
		assert.Contains(t, summary, v.advice)
		assert.Contains(t, summary, "docs/for-schedulers.md#")
		assertNothingLeft(t, shared)
	}
	assert.Regexp(t, "Runs removed: 0", conformance(t, shared, "--cleanup").out)
}

// Without permissions, the command reports the first in one line, and creates no objects.
func TestConformance_CannotRun(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	b.kubectl("create", "clusterrolebinding", "conformance-viewer", "--clusterrole=view", "--user=conformance-viewer")
	r := conformance(t, shared, "--scheduler-name=x", "--as=conformance-viewer")
	assert.Equal(t, 2, r.code)
	assert.Empty(t, r.out)
	assert.Equal(t, 1, strings.Count(r.progress, "\n"), r.progress)
	for _, words := range []string{"cannot list resource \"nodes\"", "docs/conformance.md"} {
		assert.Contains(t, r.progress, words)
	}
	assertNothingLeft(t, shared)
}

// ownAnnotation is an annotation that smallScheduler sets on every Binding.
const ownAnnotation = "example.com/bound-by"

// smallScheduler is a scheduler that supports only node selectors and node affinity. It posts a Binding in a goroutine per pod, and
// knows Prebind only from docs/for-schedulers.md.
type smallScheduler struct {
	client kubernetes.Interface
	name   string
	// wrong makes it violate the contract: it omits the UID of the pod and its own annotation, and drops a pod after a rejection.
	wrong   bool
	working sync.WaitGroup
}

// lacksDriver returns whether the pod has a volume whose driver the node lacks. Some schedulers then do not use the node.
func (s *smallScheduler) lacksDriver(ctx context.Context, pod *corev1.Pod, node string) bool {
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		claim, err := s.client.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, v.PersistentVolumeClaim.ClaimName, metav1.GetOptions{})
		if err != nil || claim.Spec.StorageClassName == nil {
			return true
		}
		class, err := s.client.StorageV1().StorageClasses().Get(ctx, *claim.Spec.StorageClassName, metav1.GetOptions{})
		if err != nil {
			return true
		}
		csiNode, err := s.client.StorageV1().CSINodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil || !slices.ContainsFunc(csiNode.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == class.Provisioner }) {
			return true
		}
	}
	return false
}

// startScheduler starts the scheduler until the end of the test.
func startScheduler(t *testing.T, w *world, name string, wrong bool) {
	t.Helper()
	takeTurn(t)
	s := &smallScheduler{client: w.client, name: name, wrong: wrong}
	ctx, cancel := context.WithCancel(t.Context())
	own := informers.NewSharedInformerFactoryWithOptions(w.client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.Set{"spec.schedulerName": name, "spec.nodeName": ""}.String()
	}))
	pods := own.Core().V1().Pods().Informer()
	schedule := func(object any) {
		if pod, ok := object.(*corev1.Pod); ok {
			s.working.Go(func() { s.schedule(ctx, pod) })
		}
	}
	_, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: schedule})
	require.NoError(t, err)
	own.Start(ctx.Done())
	t.Cleanup(func() {
		cancel()
		own.Shutdown()
		s.working.Wait()
	})
}

// schedule binds the pod. After a rejection it chooses a node again, with backoff.
func (s *smallScheduler) schedule(ctx context.Context, pod *corev1.Pod) {
	uid, last := pod.UID, ""
	for backoff := time.Second; ctx.Err() == nil; backoff = min(2*backoff, 8*time.Second) {
		now, err := s.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && (now.UID != uid || now.Spec.NodeName != "") {
			return
		}
		if err == nil {
			last = s.choose(ctx, now, last)
		}
		if err == nil && last != "" {
			err = s.bind(ctx, now, last)
		} else if err == nil {
			err = errNoNode
		}
		switch status := apierrors.APIStatus(nil); {
		case err == nil, apierrors.IsConflict(err), apierrors.IsNotFound(err):
			return
		case errors.As(err, &status) && status.Status().Code == http.StatusPreconditionFailed:
			return
		case s.wrong && !apierrors.IsTooManyRequests(err):
			return
		}
		_ = cluster.Pause(ctx, backoff)
	}
}

// errNoNode means that no node fits.
var errNoNode = errors.New("no node fits")

// choose returns a random node that the pod allows, and another one than the last if there is one.
func (s *smallScheduler) choose(ctx context.Context, pod *corev1.Pod, last string) string {
	nodes, err := s.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return last
	}
	var fitting []string
	for i := range nodes.Items {
		node := &nodes.Items[i]
		if len(node.Spec.Taints) > 0 {
			continue
		}
		if fits, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); fits && err == nil && node.Name != last && !s.lacksDriver(ctx, pod, node.Name) {
			fitting = append(fitting, node.Name)
		}
	}
	if len(fitting) == 0 {
		return last
	}
	return fitting[rand.IntN(len(fitting))]
}

// bind posts the Binding with the annotations of the pod, as some schedulers do. client-go repeats it on 429.
func (s *smallScheduler) bind(ctx context.Context, pod *corev1.Pod, node string) error {
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Annotations: labels.Merge(pod.Annotations, labels.Set{ownAnnotation: s.name})},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}
	if s.wrong {
		binding.UID, binding.Annotations = "", nil
	}
	return s.client.CoreV1().Pods(pod.Namespace).Bind(ctx, binding, metav1.CreateOptions{})
}
