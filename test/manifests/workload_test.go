// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestOrder(t *testing.T) {
	objects := render(t, everything)
	require.NotEmpty(t, objects)

	cases := map[string]struct {
		reason    string
		got, want any
	}{
		"NamespaceFirst": {
			reason: "nothing else can be made before it",
			got:    kind(objects[0]),
			want:   "Namespace",
		},
		"WebhookLast": {
			reason: "binds must not ask for what is not there yet",
			got:    kind(objects[len(objects)-1]),
			want:   "MutatingWebhookConfiguration",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, tc.got, tc.reason)
		})
	}
}

func TestNamespacesAndLabels(t *testing.T) {
	clusterScoped := map[string]bool{
		"Namespace": true, "ClusterRole": true, "ClusterRoleBinding": true, "MutatingWebhookConfiguration": true, "FlowSchema": true,
		"ValidatingAdmissionPolicy": true, "ValidatingAdmissionPolicyBinding": true,
	}
	for _, obj := range render(t, everything) {
		t.Run(kind(obj)+"/"+obj.GetName(), func(t *testing.T) {
			want := namespace
			if clusterScoped[kind(obj)] {
				want = ""
			}
			assert.Equal(t, want, obj.GetNamespace(), "everything lives in Prebind's own namespace, and says so")
			assert.Equal(t, "prebind", obj.GetLabels()["app.kubernetes.io/name"], "an operator finds all of it by one label")
		})
	}
}

func TestAvailability(t *testing.T) {
	objects := render(t, everything)
	deployment := get[*appsv1.Deployment](t, objects, "prebind")
	require.NotNil(t, deployment.Spec.Replicas)
	require.NotNil(t, deployment.Spec.Strategy.RollingUpdate)
	pod := deployment.Spec.Template
	require.NotNil(t, pod.Spec.TerminationGracePeriodSeconds)
	require.NotNil(t, pod.Spec.Affinity)
	require.NotNil(t, pod.Spec.Affinity.PodAntiAffinity)
	require.Len(t, pod.Spec.Containers, 1)
	container := pod.Spec.Containers[0]
	require.NotNil(t, container.Lifecycle)
	require.NotNil(t, container.Lifecycle.PreStop)
	require.NotNil(t, container.Lifecycle.PreStop.Sleep)
	preStop := container.Lifecycle.PreStop.Sleep.Seconds
	budget := get[*policyv1.PodDisruptionBudget](t, objects, "prebind")
	quota := get[*corev1.ResourceQuota](t, objects, "prebind-critical-pods")
	require.NotNil(t, quota.Spec.ScopeSelector)

	matchesPod := func(selector *metav1.LabelSelector) bool {
		s, err := metav1.LabelSelectorAsSelector(selector)
		require.NoError(t, err)
		return !s.Empty() && s.Matches(labels.Set(pod.Labels))
	}
	apart := map[string]bool{}
	for _, term := range pod.Spec.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
		apart[term.PodAffinityTerm.TopologyKey] = matchesPod(term.PodAffinityTerm.LabelSelector)
	}
	spread := map[string]bool{}
	for _, constraint := range pod.Spec.TopologySpreadConstraints {
		spread[constraint.TopologyKey] = matchesPod(constraint.LabelSelector) &&
			constraint.WhenUnsatisfiable == corev1.ScheduleAnyway
	}
	hostsAndZones := map[string]bool{corev1.LabelHostname: true, corev1.LabelTopologyZone: true}
	probe := func(p *corev1.Probe) string {
		if p == nil || p.HTTPGet == nil {
			return ""
		}
		return p.HTTPGet.Port.String() + p.HTTPGet.Path
	}

	cases := map[string]struct {
		reason    string
		got, want any
	}{
		"Replicas":         {reason: "one node may fail", got: *deployment.Spec.Replicas, want: int32(2)},
		"DeploymentSelect": {reason: "the API server refuses a selector that misses the template", got: matchesPod(deployment.Spec.Selector), want: true},
		"MaxUnavailable": {
			reason: "an update must not take a replica away before the new one is ready",
			got:    deployment.Spec.Strategy.RollingUpdate.MaxUnavailable,
			want:   new(intstr.FromInt32(0)),
		},
		"BudgetSelect": {reason: "the budget must count the replicas", got: matchesPod(budget.Spec.Selector), want: true},
		"BudgetKeepsOne": {
			reason: "a drain must leave one replica",
			got:    budget.Spec.MinAvailable,
			want:   new(intstr.FromInt32(1)),
		},
		"BudgetLetsGo": {
			reason: "a replica that is broken must not block a drain",
			got:    budget.Spec.UnhealthyPodEvictionPolicy,
			want:   new(policyv1.AlwaysAllow),
		},
		"AntiAffinity":     {reason: "replicas stay apart, where there is room", got: apart, want: hostsAndZones},
		"NoRequiredApart":  {reason: "a cluster of one node must run both", got: len(pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution), want: 0},
		"Spread":           {reason: "replicas are spread, where there is room", got: spread, want: hostsAndZones},
		"Priority":         {reason: "no pod is bound without Prebind, so no ordinary pod may displace it", got: pod.Spec.PriorityClassName, want: "system-cluster-critical"},
		"QuotaForPriority": {reason: "some clusters admit that priority only under a quota for it", got: quota.Spec.ScopeSelector.MatchExpressions[0].Values, want: []string{pod.Spec.PriorityClassName}},
		"PreStop":          {reason: "the endpoints must have forgotten the pod before it drains", got: preStop, want: int64(5)},
		"GraceFitsDrain":   {reason: "a drain takes up to 35 s: the delay, and twice the time-out", got: *pod.Spec.TerminationGracePeriodSeconds > preStop+35, want: true},
		"StartupProbe":     {reason: "a slow start is not a dead process", got: probe(container.StartupProbe), want: "health/healthz"},
		"LivenessProbe":    {reason: "a stuck process must be started again", got: probe(container.LivenessProbe), want: "health/healthz"},
		"ReadinessProbe":   {reason: "a replica whose caches are empty must not be called", got: probe(container.ReadinessProbe), want: "health/readyz"},
		"Requests":         {reason: "the scheduler must reserve room", got: container.Resources.Requests.Cpu().IsZero() || container.Resources.Requests.Memory().IsZero(), want: false},
		"MemoryLimit":      {reason: "a leak must not take the node along", got: container.Resources.Limits.Memory().IsZero(), want: false},
		"NoCPULimit":       {reason: "throttling would delay every bind", got: container.Resources.Limits.Cpu().IsZero(), want: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, tc.got, tc.reason)
		})
	}
}

func TestPodSecurity(t *testing.T) {
	objects := render(t, everything)
	ns := get[*corev1.Namespace](t, objects, namespace)
	account := get[*corev1.ServiceAccount](t, objects, "prebind")
	pod := get[*appsv1.Deployment](t, objects, "prebind").Spec.Template.Spec
	require.NotNil(t, pod.SecurityContext)
	require.Len(t, pod.Containers, 1)
	container := pod.Containers[0]
	require.NotNil(t, container.SecurityContext)

	cases := map[string]struct {
		reason    string
		got, want any
	}{
		"Enforced":      {reason: "nothing looser may run beside it", got: ns.Labels["pod-security.kubernetes.io/enforce"], want: "restricted"},
		"NonRoot":       {reason: "it needs no root", got: pod.SecurityContext.RunAsNonRoot, want: new(true)},
		"User":          {reason: "the image's own user, by number, so that NonRoot can be checked", got: pod.SecurityContext.RunAsUser, want: new(int64(65532))},
		"Seccomp":       {reason: "the runtime's filter", got: pod.SecurityContext.SeccompProfile, want: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
		"ReadOnlyRoot":  {reason: "it writes no file", got: container.SecurityContext.ReadOnlyRootFilesystem, want: new(true)},
		"NoEscalation":  {reason: "no setuid", got: container.SecurityContext.AllowPrivilegeEscalation, want: new(false)},
		"Capabilities":  {reason: "it needs none", got: container.SecurityContext.Capabilities, want: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
		"NotPrivileged": {reason: "it needs none of it", got: container.SecurityContext.Privileged, want: (*bool)(nil)},
		"HostNamespaces": {
			reason: "the API server reaches it through the Service",
			got:    pod.HostNetwork || pod.HostPID || pod.HostIPC,
			want:   false,
		},
		"ServiceAccount": {reason: "it is the account that the roles are bound to", got: pod.ServiceAccountName, want: account.Name},
		"NoStrayToken":   {reason: "another pod that names the account must ask for the token", got: account.AutomountServiceAccountToken, want: new(false)},
		"OwnToken":       {reason: "Prebind talks to the API server", got: pod.AutomountServiceAccountToken, want: new(true)},
		"Image":          {reason: "kustomize must have set the published image", got: container.Image, want: "ghcr.io/prebind/prebind:latest"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, tc.got, tc.reason)
		})
	}
}

func kind(obj object) string {
	return obj.GetObjectKind().GroupVersionKind().Kind
}
