// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests_test

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"testing"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

const selfManaged = "config/webhook/overlays/self-managed"

// renderWith builds an operator's own kustomization; see overlay.
func renderWith(t *testing.T, resources, components []string, files map[string]string) []object {
	t.Helper()
	return render(t, overlay(t, resources, components, files))
}

// overlay writes a kustomization of the resources, by their paths from the
// repository's root or as files in it, and the components, and returns its folder.
func overlay(t *testing.T, resources, components []string, files map[string]string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	top, err := filepath.Abs(root)
	require.NoError(t, err)
	way, err := filepath.Rel(dir, top)
	require.NoError(t, err)
	k := map[string]any{"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
	var all, on []string
	for name, content := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
		all = append(all, name)
	}
	for _, r := range resources {
		all = append(all, path.Join(filepath.ToSlash(way), r))
	}
	for _, c := range components {
		on = append(on, path.Join(filepath.ToSlash(way), everything, c))
	}
	k["resources"], k["components"] = all, on
	content, err := yaml.Marshal(k)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), content, 0o600))
	return dir
}

func containerOf(t *testing.T, objects []object) (corev1.PodSpec, corev1.Container) {
	t.Helper()
	spec := get[*appsv1.Deployment](t, objects, "prebind").Spec.Template.Spec
	require.Len(t, spec.Containers, 1)
	return spec, spec.Containers[0]
}

func volumeNames(spec corev1.PodSpec) []string {
	var names []string
	for _, v := range spec.Volumes {
		names = append(names, v.Name)
	}
	return names
}

func TestConfiguration(t *testing.T) {
	objects := render(t, everything)
	configs := all[*corev1.ConfigMap](objects)
	require.Len(t, configs, 1)
	config := configs[0]
	assert.Regexp(t, "^prebind-config-[a-z0-9]{10}$", config.Name, "a change must be a rollout")
	spec, container := containerOf(t, objects)
	require.Contains(t, config.Data, "config.yaml")
	var content map[string]any
	require.NoError(t, yaml.UnmarshalStrict([]byte(config.Data["config.yaml"]), &content))
	assert.Equal(t, map[string]any{"apiVersion": "config.prebind.dev/v1alpha1", "kind": "PrebindConfiguration"}, content,
		"as shipped it says nothing: the defaults are the program's")
	assert.Equal(t, "mode Enforce, mutators topology, PreBind plugins node-state, policy, device, resource-claims, volumebinding", checkedConfig(t, config.Data["config.yaml"]))
	for _, m := range container.VolumeMounts {
		assert.Empty(t, m.SubPath, "the kubelet does not bring new certificates to a single file")
		assert.True(t, m.ReadOnly, "the program writes no file")
	}
	assert.Contains(t, container.VolumeMounts, corev1.VolumeMount{Name: "config", MountPath: "/etc/prebind/config", ReadOnly: true})
	for _, v := range spec.Volumes {
		if v.Name == "config" {
			require.NotNil(t, v.ConfigMap)
			assert.Equal(t, config.Name, v.ConfigMap.Name)
		}
	}
}

func TestNetworkPolicy(t *testing.T) {
	objects := render(t, everything)
	policy := get[*networkingv1.NetworkPolicy](t, objects, "prebind")
	_, container := containerOf(t, objects)
	pod := get[*appsv1.Deployment](t, objects, "prebind").Spec.Template

	assert.Equal(t, pod.Labels, policy.Spec.PodSelector.MatchLabels, "it must be about the replicas")
	assert.Equal(t, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}, policy.Spec.PolicyTypes, "a wrong egress rule would stop all binds")
	assert.Empty(t, policy.Spec.Egress)
	open := map[intstr.IntOrString]bool{}
	for _, rule := range policy.Spec.Ingress {
		assert.Empty(t, rule.From, "where the API server calls from is the operator's to say")
		require.NotEmpty(t, rule.Ports, "a rule without ports opens all of them")
		for _, p := range rule.Ports {
			require.NotNil(t, p.Port)
			open[*p.Port] = true
		}
	}
	want := map[intstr.IntOrString]bool{}
	for _, p := range container.Ports {
		want[intstr.FromString(p.Name)] = true
	}
	assert.Equal(t, want, open, "the ports that the container has, and no other")
}

func TestSelfManaged(t *testing.T) {
	objects := render(t, selfManaged)
	spec, container := containerOf(t, objects)
	assert.Empty(t, all[*certmanagerv1.Certificate](objects), "cert-manager is not there")
	assert.Empty(t, all[*certmanagerv1.Issuer](objects), "cert-manager is not there")
	assert.Equal(t, []string{"config"}, volumeNames(spec), "there is no Secret to mount, and a pod would wait for it")
	assert.Contains(t, container.Args, "--self-managed-certs")
	for _, a := range container.Args {
		assert.NotContains(t, a, "--cert-dir", "the program takes one of the two")
	}
	configuration := get[*admissionregistrationv1.MutatingWebhookConfiguration](t, objects, "prebind")
	assert.Empty(t, configuration.Annotations, "no other component may set the CA")

	role, clusterRole := get[*rbacv1.Role](t, objects, "prebind-self-managed-certs"), get[*rbacv1.ClusterRole](t, objects, "prebind-self-managed-certs")
	assert.Equal(t, map[string][]string{"secrets": {"create", "get", "list", "update", "watch"}}, permissions(t, role.Rules))
	for _, rule := range role.Rules {
		if rule.Verbs[0] != "create" || len(rule.Verbs) > 1 {
			assert.Equal(t, []string{"prebind-webhook-ca"}, rule.ResourceNames, "no other Secret")
		}
	}
	assert.Equal(t, map[string][]string{"admissionregistration.k8s.io/mutatingwebhookconfigurations": {"get", "list", "patch", "watch"}}, permissions(t, clusterRole.Rules))
	for _, rule := range clusterRole.Rules {
		assert.Equal(t, []string{"prebind"}, rule.ResourceNames, "no other webhook's")
	}
	get[*rbacv1.RoleBinding](t, objects, role.Name)
	get[*rbacv1.ClusterRoleBinding](t, objects, clusterRole.Name)

	// All the rest is what is shipped with cert-manager.
	rest := func(objects []object) map[string]bool {
		set := map[string]bool{}
		for _, o := range objects {
			switch {
			case o.GetName() == role.Name, kind(o) == "Certificate", kind(o) == "Issuer", kind(o) == "Deployment":
			default:
				set[kind(o)+"/"+o.GetName()] = true
			}
		}
		return set
	}
	assert.Equal(t, rest(render(t, everything)), rest(objects))
}

func TestCertificateFiles(t *testing.T) {
	const ca = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk5vdGhpbmcKLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo="
	objects := renderWith(t, []string{base}, []string{"certificates/files"}, map[string]string{"secret.yaml": fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: prebind-webhook-tls, namespace: prebind-system}
data: {tls.crt: "", tls.key: "", ca.crt: %s}
`, ca)})
	secret := get[*corev1.Secret](t, objects, "prebind-webhook-tls")
	require.NotEmpty(t, secret.Data["ca.crt"])
	configuration := get[*admissionregistrationv1.MutatingWebhookConfiguration](t, objects, "prebind")
	for _, w := range configuration.Webhooks {
		assert.Equal(t, secret.Data["ca.crt"], w.ClientConfig.CABundle, "the API server trusts the CA in the Secret")
	}
}

func TestClientCA(t *testing.T) {
	spec, container := containerOf(t, renderWith(t, []string{everything}, []string{"client-ca"}, nil))
	assert.Contains(t, container.Args, "--client-ca-file=/etc/prebind/client-ca/ca.crt")
	assert.Contains(t, container.Args, "--client-allowed-names=kube-apiserver", "the cluster's CA signs for others as well")
	assert.Contains(t, container.VolumeMounts, corev1.VolumeMount{Name: "client-ca", MountPath: "/etc/prebind/client-ca", ReadOnly: true})
	assert.ElementsMatch(t, []string{"tls", "config", "client-ca"}, volumeNames(spec), "the other volumes stay")
}

func TestFailurePolicyIgnore(t *testing.T) {
	of := func(objects []object) *admissionregistrationv1.MutatingWebhookConfiguration {
		return get[*admissionregistrationv1.MutatingWebhookConfiguration](t, objects, "prebind")
	}
	shipped, ignoring := of(render(t, everything)), of(renderWith(t, []string{everything}, []string{"failure-policy-ignore"}, nil))
	require.Len(t, ignoring.Webhooks, 1)
	assert.Equal(t, new(admissionregistrationv1.Ignore), ignoring.Webhooks[0].FailurePolicy)
	shipped.Webhooks[0].FailurePolicy = ignoring.Webhooks[0].FailurePolicy
	assert.Equal(t, shipped, ignoring, "and nothing else changes")
}

// The kustomizations for the first installation differ from the shipped ones in the failure policy only.
func TestFirstInstall(t *testing.T) {
	for first, shipped := range map[string]string{"config/first-install": everything, "config/first-install/self-managed": selfManaged} {
		t.Run(first, func(t *testing.T) {
			got, want := render(t, first), render(t, shipped)
			webhooks := get[*admissionregistrationv1.MutatingWebhookConfiguration](t, got, "prebind").Webhooks
			require.Len(t, webhooks, 1)
			assert.Equal(t, new(admissionregistrationv1.Ignore), webhooks[0].FailurePolicy)
			webhooks[0].FailurePolicy = new(admissionregistrationv1.Fail)
			assert.Equal(t, want, got)
		})
	}
}

// End-to-end tests cover the effect of the policies.
func TestAnnotationPolicy(t *testing.T) {
	objects := renderWith(t, []string{everything}, []string{"annotation-policy"}, nil)
	webhook := get[*admissionregistrationv1.MutatingWebhookConfiguration](t, objects, "prebind").Webhooks[0]
	policies := all[*admissionregistrationv1.ValidatingAdmissionPolicy](objects)
	require.Len(t, policies, 3)
	for _, p := range policies {
		assert.Equal(t, new(admissionregistrationv1.Fail), p.Spec.FailurePolicy, "what cannot be judged is refused")
		binding := get[*admissionregistrationv1.ValidatingAdmissionPolicyBinding](t, objects, p.Name)
		assert.Equal(t, p.Name, binding.Spec.PolicyName)
		assert.Equal(t, []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}, binding.Spec.ValidationActions)
		assert.Equal(t, webhook.NamespaceSelector, binding.Spec.MatchResources.NamespaceSelector, "it holds where Prebind is asked")
		assert.Nil(t, p.Spec.ParamKind, "a parameter that is missing would stop all binds")
	}
	bindings := get[*admissionregistrationv1.ValidatingAdmissionPolicy](t, objects, "bindings.prebind.dev")
	assert.Equal(t, webhook.Rules[0].Resources, bindings.Spec.MatchConstraints.ResourceRules[0].Resources, "both ways to bind a pod")
	assert.Equal(t, "schedulers", bindings.Spec.Variables[0].Name, "the documentation refers to its index")
}

// No component needs another one.
func TestEveryComponentBuilds(t *testing.T) {
	var components []string
	err := filepath.WalkDir(filepath.Join(root, everything), func(p string, _ os.DirEntry, err error) error {
		if err != nil || filepath.Base(p) != "kustomization.yaml" {
			return err
		}
		content, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		var k struct {
			Kind string `json:"kind"`
		}
		if err := yaml.Unmarshal(content, &k); err != nil {
			return err
		}
		if dir, err := filepath.Rel(filepath.Join(root, everything), filepath.Dir(p)); err != nil {
			return err
		} else if k.Kind == "Component" && filepath.ToSlash(dir) != "certificates/files" {
			components = append(components, filepath.ToSlash(dir))
		}
		return nil
	})
	require.NoError(t, err)
	require.NotEmpty(t, components)
	for _, c := range components {
		t.Run(c, func(t *testing.T) {
			_, err := kustomize(t.Context(), overlay(t, []string{base}, []string{c}, nil))
			assert.NoError(t, err)
		})
	}
}
