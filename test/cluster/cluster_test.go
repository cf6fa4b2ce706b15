// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/prebind/prebind/test/cluster"
)

const kubernetesVersion = "v1.36.3"

func TestKubectlVersion(t *testing.T) {
	out, err := shared.Kubectl(t.Context(), "version", "-o", "json").Output()
	require.NoError(t, err)
	var versions struct{ ClientVersion, ServerVersion version.Info }
	require.NoError(t, json.Unmarshal(out, &versions))
	assert.Equal(t, kubernetesVersion, versions.ClientVersion.GitVersion)
	minor := cmp.Or(os.Getenv(cluster.VersionEnv), "1.36")
	assert.Regexp(t, `^v`+minor+`\.\d+$`, versions.ServerVersion.GitVersion)
	assert.Equal(t, minor, versions.ServerVersion.Major+"."+versions.ServerVersion.Minor)
	for side, got := range map[string]version.Info{"client": versions.ClientVersion, "server": versions.ServerVersion} {
		assert.Equal(t, "clean", got.GitTreeState, side)
	}
}

func TestSchedulerBindsPod(t *testing.T) {
	client := clientFor(t, shared.Config())
	namespace := newNamespace(t, client)
	nodes := cluster.Nodes("bind", 4)
	newNodes(t, client, nodes...)

	pod := untilBound(t, client, namespace, newPod(t, client, namespace, cluster.DefaultScheduler, ""))
	assert.Contains(t, pod.Spec.NodeName, "bind-")

	// The API server logs the Binding when it has answered, which is after the pod is bound.
	binds := until(t, "the Binding in the audit log", func(context.Context) ([]cluster.AuditEvent, error) {
		events, err := shared.AuditEvents()
		return slices.DeleteFunc(events, func(e cluster.AuditEvent) bool {
			return e.ObjectRef == nil || e.ObjectRef.Namespace != namespace || e.ObjectRef.Name != pod.Name
		}), err
	}, func(binds []cluster.AuditEvent) bool { return len(binds) > 0 })
	require.Len(t, binds, 1, "binds of the pod in the audit log")
	assert.Equal(t, "system:kube-scheduler", binds[0].User.Username)
	assert.Equal(t, "binding", binds[0].ObjectRef.Subresource)
	assert.EqualValues(t, 201, binds[0].ResponseStatus.Code)

	node, err := client.CoreV1().Nodes().Get(t.Context(), "bind-4", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "zone-1", node.Labels[corev1.LabelTopologyZone])
	assert.Equal(t, "rack-1-2", node.Labels[cluster.RackLabel])
	assert.Empty(t, node.Spec.Taints)
}

func TestRBACIsOn(t *testing.T) {
	config, err := shared.UserConfig("guest", "guests")
	require.NoError(t, err)
	client := clientFor(t, config)
	_, err = client.CoreV1().Secrets("kube-system").List(t.Context(), metav1.ListOptions{})
	assert.True(t, apierrors.IsForbidden(err), "want forbidden, got: %v", err)

	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	require.NoError(t, err)
	assert.Equal(t, "guest", review.Status.UserInfo.Username)
	assert.Contains(t, review.Status.UserInfo.Groups, "guests")
}

func TestServiceAccountKubeconfig(t *testing.T) {
	namespace := newNamespace(t, clientFor(t, shared.Config()))
	path, err := shared.ServiceAccountKubeconfig(t.Context(), namespace, "default")
	require.NoError(t, err)
	config, err := clientcmd.BuildConfigFromFlags("", path)
	require.NoError(t, err)
	assert.NotEmpty(t, config.BearerTokenFile)

	review, err := clientFor(t, config).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	require.NoError(t, err)
	assert.Equal(t, "system:serviceaccount:"+namespace+":default", review.Status.UserInfo.Username)

	_, err = shared.ServiceAccountKubeconfig(t.Context(), namespace, "missing")
	assert.True(t, apierrors.IsNotFound(err), "want not found, got: %v", err)
}

// TestRestart is about the API server and etcd going away and coming back with
// the same data, at the same address, while everything else stays.
func TestRestart(t *testing.T) {
	client := clientFor(t, shared.Config())
	namespace := newNamespace(t, client)
	newNodes(t, client, cluster.Node("restart"))

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	before := shared.Process(cluster.Etcd).PID()
	require.NoError(t, shared.Process(cluster.Etcd).Restart(ctx))
	assert.NotEqual(t, before, shared.Process(cluster.Etcd).PID())
	require.NoError(t, shared.Process(cluster.APIServer).Kill())
	require.NoError(t, shared.Process(cluster.APIServer).Restart(ctx))
	require.NoError(t, shared.Err())

	untilBound(t, client, namespace, newPod(t, client, namespace, cluster.DefaultScheduler, ""))
}

// TestTwoAtOnce is about a second control plane beside the shared one, and about
// a component that ends by itself.
func TestTwoAtOnce(t *testing.T) {
	c, err := cluster.Start(t.Context(), cluster.Options{
		Out: t.Output(), WithoutScheduler: true, WithoutControllerManager: true, WithoutProvisioner: true,
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Stop() })
	assert.NotEqual(t, shared.URL(cluster.APIServer), c.URL(cluster.APIServer))
	assert.Nil(t, c.Process(cluster.Scheduler))
	_, err = clientFor(t, c.Config()).Discovery().ServerVersion()
	require.NoError(t, err)
	require.NoError(t, c.Err())

	etcd := c.Process(cluster.Etcd)
	require.NoError(t, etcd.Signal(os.Kill))
	<-etcd.Exited()
	require.ErrorContains(t, c.Err(), cluster.Etcd)

	require.ErrorContains(t, c.Stop(), cluster.Etcd, "Stop says that a component was gone before")
	require.ErrorContains(t, c.Stop(), cluster.Etcd, "and says it again")
	assert.NoDirExists(t, c.Dir())
	assert.NoError(t, shared.Err(), "the other control plane is not concerned")
}

func TestStartRefuses(t *testing.T) {
	empty := t.TempDir()
	cases := map[string]struct {
		reason string
		env    map[string]string
		o      cluster.Options
		want   string
	}{
		"unknown component": {
			reason: "extra arguments for what does not exist would be lost without a word",
			o:      cluster.Options{ExtraArgs: map[string][]string{"kubelet": nil}},
			want:   "kubelet",
		},
		"binaries missing": {
			reason: "the error names the component and the variable",
			env:    map[string]string{cluster.AssetsEnv: empty, cluster.VersionEnv: ""},
			o:      cluster.Options{WithoutProvisioner: true},
			want:   "find etcd",
		},
		"bad scheduler configuration": {
			reason: "the error names the option",
			o:      cluster.Options{SchedulerConfig: []byte("- no mapping")},
			want:   "Options.SchedulerConfig",
		},
		"bad flag": {
			reason: "the end of the log says what is wrong",
			o:      cluster.Options{ExtraArgs: map[string][]string{cluster.Etcd: {"--no-such-flag"}}},
			want:   "no-such-flag",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			for key, value := range tc.env {
				t.Setenv(key, value)
			}
			tc.o.Dir = t.TempDir()
			c, err := cluster.Start(t.Context(), tc.o)
			require.Error(t, err, tc.reason)
			assert.Nil(t, c)
			assert.Contains(t, strings.ToLower(err.Error()), strings.ToLower(tc.want), tc.reason)
		})
	}
}
