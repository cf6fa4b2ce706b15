// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package release_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
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

// completeRollout reports the pods of the Deployment as ready, like the kubelet.
func (w *world) completeRollout() {
	w.t.Helper()
	require.EventuallyWithT(w.t, func(c *assert.CollectT) {
		pods, err := w.client.CoreV1().Pods(install.Namespace).List(w.t.Context(), metav1.ListOptions{})
		require.NoError(c, err)
		for _, pod := range pods.Items {
			_, err := w.client.CoreV1().Pods(install.Namespace).Patch(w.t.Context(), pod.Name, types.StrategicMergePatchType,
				[]byte(`{"status": {"conditions": [{"type": "Ready", "status": "True"}]}}`), metav1.PatchOptions{}, "status")
			require.NoError(c, err)
		}
		d, err := w.client.AppsV1().Deployments(install.Namespace).Get(w.t.Context(), "prebind", metav1.GetOptions{})
		require.NoError(c, err)
		assert.Equal(c, *d.Spec.Replicas, d.Status.AvailableReplicas)
	}, patience, time.Second)
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
			w.completeRollout()
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

// user runs the commands of docs/install.md in a directory with the files of a release.
type user struct {
	*world
	dir string
	// program is the path of the command-line tool.
	program string
	// files replaces the names of the manifests by those for clusters without cert-manager.
	files *strings.Replacer
	// todo contains the commands of the section "Install from a release" that were not run yet.
	todo []string
	// command applies manifests.
	command string
}

// newUser downloads the files of the release. The suffix is that of the manifests.
func newUser(w *world, version, suffix string) *user {
	w.t.Helper()
	u := &user{
		world: w, dir: w.t.TempDir(), program: programOf(w.t, version), todo: commandsOf(w.t, "## Install from a release"),
		files: strings.NewReplacer("first-install.yaml", "first-install"+suffix+".yaml", "install.yaml", "install"+suffix+".yaml"),
	}
	u.copyRelease(version)
	return u
}

// copyRelease replaces the files in the directory by those of the release.
func (u *user) copyRelease(version string) {
	u.t.Helper()
	entries, err := os.ReadDir(releaseOf(u.t, version))
	require.NoError(u.t, err)
	for _, e := range entries {
		require.NoError(u.t, copyFile(filepath.Join(releaseOf(u.t, version), e.Name()), filepath.Join(u.dir, e.Name())))
	}
}

// next returns the next command of the section. It must have this prefix.
func (u *user) next(prefix string) string {
	u.t.Helper()
	require.NotEmpty(u.t, u.todo, "docs/install.md should contain %s", prefix)
	command := u.todo[0]
	u.todo = u.todo[1:]
	require.True(u.t, strings.HasPrefix(command, prefix), "docs/install.md should contain %s instead of %s", prefix, command)
	return command
}

// skipDownload checks that the release contains the files of the next command.
func (u *user) skipDownload() {
	u.t.Helper()
	list := regexp.MustCompile(`/download/\$VERSION/\{(.*)\}"$`).FindStringSubmatch(u.next("curl"))
	require.NotNil(u.t, list)
	for name := range strings.SplitSeq(list[1], ",") {
		assert.FileExists(u.t, filepath.Join(u.dir, name))
	}
}

// run runs the command, and returns its output.
func (u *user) run(command string) string {
	u.t.Helper()
	out, err := u.shell(u.t.Context(), command)
	require.NoError(u.t, err)
	return out
}

func (u *user) shell(ctx context.Context, command string) (string, error) {
	kubectl := u.cluster.Kubectl(ctx)
	path := strings.Join([]string{filepath.Dir(kubectl.Path), filepath.Dir(u.program), os.Getenv("PATH")}, string(filepath.ListSeparator))
	cmd := exec.CommandContext(ctx, "bash", "-c", u.files.Replace(command))
	cmd.Dir, cmd.Env = u.dir, slices.Concat(kubectl.Env, []string{"PATH=" + path, "VERSION=" + current})
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", command, err, out)
	}
	return string(out), nil
}

// apply applies the manifests of the current command.
func (u *user) apply(ctx context.Context) error {
	_, err := u.shell(ctx, u.command)
	return err
}

// uninstall runs the first commands of the section "Uninstall", for manifests.
func (u *user) uninstall(ctx context.Context) error {
	for _, command := range commandsOf(u.t, "## Uninstall")[:2] {
		if _, err := u.shell(ctx, command); err != nil {
			return err
		}
	}
	return nil
}

// checkInstallation runs the commands of the section "Check the installation".
func (u *user) checkInstallation() {
	u.t.Helper()
	for _, command := range commandsOf(u.t, "## Check the installation") {
		if strings.Contains(command, "rollout status") {
			continue
		}
		out := u.run(strings.ReplaceAll(command, "WORKER", cluster.Nodes("node", 1)[0].Name))
		if strings.HasPrefix(command, "kubectl prebind explain") {
			assert.Contains(u.t, out, "Bind of pod default/try to node node-1: would be bound")
		}
	}
}

// commandsOf returns the commands of a section of docs/install.md up to its first subsection.
func commandsOf(t *testing.T, heading string) []string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, "docs", "install.md"))
	require.NoError(t, err)
	_, section, found := strings.Cut(string(content), "\n"+heading+"\n")
	require.True(t, found, "docs/install.md should contain the section %s", heading)
	if next := regexp.MustCompile(`(?m)^##`).FindStringIndex(section); next != nil {
		section = section[:next[0]]
	}
	var commands []string
	for _, block := range regexp.MustCompile("(?ms)^```console\n(.*?)^```$").FindAllStringSubmatch(section, -1) {
		commands = append(commands, strings.Split(strings.TrimPrefix(strings.TrimSpace(block[1]), "$ "), "\n$ ")...)
	}
	require.NotEmpty(t, commands)
	return commands
}
