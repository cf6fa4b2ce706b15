// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package release_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/cluster/clustertest"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
)

const (
	patience = cluster.Patience
	// users is the namespace of the pods that the tests bind.
	users = "users"
)

// world is a control plane with nodes and without Prebind.
type world struct {
	t       *testing.T
	cluster *cluster.Cluster
	client  kubernetes.Interface
	prebind *install.Prebind
	// before contains the objects of the cluster before the installation.
	before map[string]bool
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, cluster: clustertest.Start(t, cluster.Options{})}
	w.client = w.cluster.Client()
	require.NoError(t, cluster.CreateNodes(t.Context(), w.client, cluster.Nodes("node", 2)...))
	_, err := w.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: users}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, cluster.WaitForPods(t.Context(), w.client, users))
	w.before = w.objects()
	t.Cleanup(func() {
		if w.prebind == nil {
			return
		}
		for _, r := range w.prebind.Replicas() {
			clustertest.Kill(t, r.Process)
		}
	})
	return w
}

func (w *world) install(o install.Options) {
	w.t.Helper()
	o.Cluster = w.cluster
	var err error
	w.prebind, err = install.New(w.t.Context(), o)
	require.NoError(w.t, err)
}

// start starts a replica for each of the Deployment, with the arguments of the manifests only.
func (w *world) start() {
	w.t.Helper()
	d, err := w.client.AppsV1().Deployments(install.Namespace).Get(w.t.Context(), "prebind", metav1.GetOptions{})
	require.NoError(w.t, err)
	for range *d.Spec.Replicas {
		_, err := w.prebind.Start(w.t.Context())
		require.NoError(w.t, err)
	}
}

// bind creates a pod and waits until kube-scheduler has bound it.
func (w *world) bind(name string) *corev1.Pod {
	w.t.Helper()
	_, err := w.client.CoreV1().Pods(users).Create(w.t.Context(), gen.Pod(name, gen.InNamespace(users), gen.EndsAtOnce()), metav1.CreateOptions{})
	require.NoError(w.t, err)
	var pod *corev1.Pod
	require.NoError(w.t, wait.PollUntilContextTimeout(w.t.Context(), 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		pod, err = w.client.CoreV1().Pods(users).Get(ctx, name, metav1.GetOptions{})
		return err == nil && pod.Spec.NodeName != "", err
	}))
	return pod
}

// assertBinds checks that a bind adds the topology of the node to the pod.
func (w *world) assertBinds(name string) {
	w.t.Helper()
	pod := w.bind(name)
	node, err := w.client.CoreV1().Nodes().Get(w.t.Context(), pod.Spec.NodeName, metav1.GetOptions{})
	require.NoError(w.t, err)
	assert.Equal(w.t, pod.Spec.NodeName, pod.Annotations["topology.prebind.dev/hostname"])
	assert.NotEmpty(w.t, node.Labels[corev1.LabelTopologyZone])
	assert.Equal(w.t, node.Labels[corev1.LabelTopologyZone], pod.Annotations["topology.prebind.dev/zone"])
}

// assertUninstalls removes Prebind as documented, and checks that nothing of it remains.
func (w *world) assertUninstalls() {
	w.t.Helper()
	require.NoError(w.t, w.prebind.Uninstall(w.t.Context()))
	require.EventuallyWithT(w.t, func(c *assert.CollectT) {
		var left []string
		for o := range w.objects() {
			if !w.before[o] {
				left = append(left, o)
			}
		}
		assert.Empty(c, left)
	}, patience, time.Second, "the uninstallation should leave nothing behind")
	assert.NotContains(w.t, w.bind("after").Annotations, "topology.prebind.dev/hostname")
}

// objects returns all objects of the cluster. It ignores those of tests, those of cert-manager, and events.
func (w *world) objects() map[string]bool {
	w.t.Helper()
	ctx := context.WithoutCancel(w.t.Context())
	c, err := discovery.NewDiscoveryClientForConfig(w.cluster.Config())
	require.NoError(w.t, err)
	lists, err := c.ServerPreferredResources()
	require.NoError(w.t, err)
	config := w.cluster.Config()
	config.WarningHandler = rest.NoWarnings{} // Deprecated kinds are listed as well.
	objects, err := dynamic.NewForConfig(config)
	require.NoError(w.t, err)
	all := map[string]bool{}
	for _, kind := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}, lists) {
		version, err := schema.ParseGroupVersion(kind.GroupVersion)
		require.NoError(w.t, err)
		for _, r := range kind.APIResources {
			if r.Name == "events" || strings.HasSuffix(version.Group, "cert-manager.io") {
				continue
			}
			found, err := objects.Resource(version.WithResource(r.Name)).List(ctx, metav1.ListOptions{})
			require.NoError(w.t, err, "%s %s", kind.GroupVersion, r.Name)
			for _, o := range found.Items {
				if o.GetNamespace() != users && !strings.HasSuffix(o.GetName(), "cert-manager.io") {
					all[kind.GroupVersion+" "+r.Name+" "+o.GetNamespace()+"/"+o.GetName()] = true
				}
			}
		}
	}
	return all
}

// A user installs, upgrades and removes Prebind with the files of releases and the commands of docs/install.md, without a checkout.
func TestInstall(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		suffix string
		o      install.Options
	}{
		"CertManager": {reason: "install.yaml works with cert-manager"},
		"SelfManaged": {reason: "install-self-managed.yaml needs nothing else in the cluster", suffix: "-self-managed", o: install.Options{WithoutCertManager: true}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			u := newUser(w, current, tc.suffix)
			tc.o.Manifest, tc.o.Binary, tc.o.Apply, tc.o.Delete = "first-install.yaml", u.program, u.apply, u.uninstall
			u.next("VERSION=v0.2.0")
			u.skipDownload()
			u.run(u.next("sha256sum"))
			u.command = u.next("kubectl apply")
			w.install(tc.o)
			w.assertRuns(current)
			w.bind("early")
			u.next("kubectl -n prebind-system rollout status")
			w.start() // The test runs the pods as processes, so a rollout would never end.
			assert.NotContains(t, w.bind("audited").Annotations, "topology.prebind.dev/hostname", "the first installation only reports")
			u.checkInstallation()
			w.assertNext("mode is Audit. ", "the second step is missing")
			u.command = u.next("kubectl apply")
			assert.Empty(t, u.todo, "the section should contain no other commands")
			w.replace(current, "first")
			w.assertNext("", tc.reason)

			u.copyRelease(next)
			w.assertConflict()
			w.replace(next, "upgraded")
			u.copyRelease(current)
			w.replace(current, "downgraded")
			w.assertUninstalls()
		})
	}
}

// replace applies install.yaml of the version, and replaces the replicas.
func (w *world) replace(version, pod string) {
	w.t.Helper()
	old := w.prebind.Replicas()
	require.NoError(w.t, w.prebind.Upgrade(w.t.Context(), install.Version{Manifest: "install.yaml", Binary: programOf(w.t, version)}))
	w.assertRuns(version)
	w.start()
	for _, r := range old {
		require.NoError(w.t, r.Stop())
	}
	w.assertBinds(pod)
}

// assertNext checks the first step that 'kubectl prebind status' recommends, or that it recommends none. Replicas report every ten seconds.
func (w *world) assertNext(step, reason string) {
	w.t.Helper()
	require.EventuallyWithT(w.t, func(c *assert.CollectT) {
		out, err := exec.CommandContext(w.t.Context(), w.prebind.Client(), "status", "--kubeconfig="+w.cluster.Kubeconfig()).CombinedOutput()
		require.NoError(c, err, "%s", out)
		assert.Contains(c, string(out), "READY")
		_, next, _ := strings.Cut(string(out), "\nNEXT\n")
		assert.True(c, step == "" && next == "" || step != "" && strings.HasPrefix(next, "- "+step), "%s", next)
	}, patience, time.Second, reason)
}

// assertConflict checks that an upgrade does not overwrite a configuration that a user edited in the cluster.
func (w *world) assertConflict() {
	w.t.Helper()
	maps := w.client.CoreV1().ConfigMaps(install.Namespace)
	config, err := maps.Get(w.t.Context(), w.configName(), metav1.GetOptions{})
	require.NoError(w.t, err)
	shipped := config.Data["config.yaml"]
	config.Data["config.yaml"] = shipped + "mode: Audit\n"
	config, err = maps.Update(w.t.Context(), config, metav1.UpdateOptions{FieldManager: "user"})
	require.NoError(w.t, err)
	require.ErrorContains(w.t, w.prebind.Upgrade(w.t.Context(), install.Version{Manifest: "install.yaml", Binary: w.prebind.Binary()}), "conflict")
	config.Data["config.yaml"] = shipped
	_, err = maps.Update(w.t.Context(), config, metav1.UpdateOptions{FieldManager: "user"})
	require.NoError(w.t, err)
}

// configName returns the name of the ConfigMap with the configuration, which ends with a hash of its content.
func (w *world) configName() string {
	w.t.Helper()
	d, err := w.client.AppsV1().Deployments(install.Namespace).Get(w.t.Context(), "prebind", metav1.GetOptions{})
	require.NoError(w.t, err)
	for _, v := range d.Spec.Template.Spec.Volumes {
		if v.ConfigMap != nil && strings.HasPrefix(v.ConfigMap.Name, "prebind-config-") {
			return v.ConfigMap.Name
		}
	}
	require.Fail(w.t, "the Deployment has no configuration")
	return ""
}

// pinned is the image in the manifests of a release.
var pinned = regexp.MustCompile(`^ghcr\.io/prebind/prebind:(\S+)@sha256:[0-9a-f]{64}$`)

// assertRuns checks that the Deployment and the program are of the version.
func (w *world) assertRuns(version string) {
	w.t.Helper()
	d, err := w.client.AppsV1().Deployments(install.Namespace).Get(w.t.Context(), "prebind", metav1.GetOptions{})
	require.NoError(w.t, err)
	image := d.Spec.Template.Spec.Containers[0].Image
	require.Regexp(w.t, pinned, image)
	assert.Equal(w.t, version, pinned.FindStringSubmatch(image)[1])
	out, err := exec.CommandContext(w.t.Context(), w.prebind.Binary(), "version").Output()
	require.NoError(w.t, err)
	assert.Contains(w.t, string(out), version)
}

// The packaged chart installs and removes Prebind.
func TestInstall_Chart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.install(install.Options{
		Chart: filepath.Join(releaseOf(t, current), "prebind-"+current[1:]+".tgz"), Binary: programOf(t, current),
		Values: []string{"certificates.mode=selfManaged", "config.mode=Enforce", "failurePolicy=Fail"}, WithoutCertManager: true,
	})
	w.start()
	w.assertBinds("first")
	w.assertUninstalls()
}
