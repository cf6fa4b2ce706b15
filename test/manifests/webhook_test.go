// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests_test

import (
	"testing"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	certmanagermetav1 "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

func TestWebhookConfiguration(t *testing.T) {
	configuration := get[*admissionregistrationv1.MutatingWebhookConfiguration](t, render(t, everything), "prebind")
	require.Len(t, configuration.Webhooks, 1)
	webhook := configuration.Webhooks[0]
	require.Len(t, webhook.Rules, 1)
	rule := webhook.Rules[0]

	cases := map[string]struct {
		reason    string
		got, want any
	}{
		"Name": {
			reason: "the name is the prefix of the audit annotations and stays as it is",
			got:    webhook.Name,
			want:   "pods-binding.prebind.dev",
		},
		"Path": {
			reason: "it is the path that the program serves",
			got:    webhook.ClientConfig.Service.Path,
			want:   new("/mutate-pods-binding"),
		},
		"BothWaysToBind": {
			reason: "a rule for pods/binding does not see the legacy bindings, which would be a way round Prebind",
			got:    rule.Resources,
			want:   []string{"pods/binding", "bindings"},
		},
		"Group":      {reason: "both are in the core group", got: rule.APIGroups, want: []string{""}},
		"Version":    {reason: "both exist in v1 only", got: rule.APIVersions, want: []string{"v1"}},
		"Scope":      {reason: "both are namespaced", got: rule.Scope, want: new(admissionregistrationv1.NamespacedScope)},
		"CreateOnly": {reason: "a Binding can only be created", got: rule.Operations, want: []admissionregistrationv1.OperationType{admissionregistrationv1.Create}},
		"SideEffects": {
			reason: "without NoneOnDryRun the API server refuses every dry run of a bind",
			got:    webhook.SideEffects,
			want:   new(admissionregistrationv1.SideEffectClassNoneOnDryRun),
		},
		"Reinvocation": {
			reason: "only IfNeeded shows us the node when another webhook changed it",
			got:    webhook.ReinvocationPolicy,
			want:   new(admissionregistrationv1.IfNeededReinvocationPolicy),
		},
		"FailClosed": {
			reason: "a bind without checks must not proceed",
			got:    webhook.FailurePolicy,
			want:   new(admissionregistrationv1.Fail),
		},
		"MatchPolicy": {
			reason: "an equivalent request in another version must not slip by",
			got:    webhook.MatchPolicy,
			want:   new(admissionregistrationv1.Equivalent),
		},
		"Timeout": {
			reason: "longer than the hold of 25 s, and under the 34 s that all webhooks share",
			got:    webhook.TimeoutSeconds,
			want:   new(int32(30)),
		},
		"ReviewVersions": {
			reason: "the program decodes v1",
			got:    webhook.AdmissionReviewVersions,
			want:   []string{"v1"},
		},
		"NoObjectSelector": {
			reason: "it would select by the labels of the Binding, which its author chooses freely",
			got:    webhook.ObjectSelector,
			want:   (*metav1.LabelSelector)(nil),
		},
		"NoMatchConditions": {
			reason: "a condition that fails to evaluate would fail every bind",
			got:    len(webhook.MatchConditions),
			want:   0,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, tc.got, tc.reason)
		})
	}
}

func TestWebhookNamespaces(t *testing.T) {
	configuration := get[*admissionregistrationv1.MutatingWebhookConfiguration](t, render(t, everything), "prebind")
	require.Len(t, configuration.Webhooks, 1)
	selector, err := metav1.LabelSelectorAsSelector(configuration.Webhooks[0].NamespaceSelector)
	require.NoError(t, err)

	const nameLabel = corev1.LabelMetadataName
	cases := map[string]struct {
		reason string
		labels labels.Set
		want   bool
	}{
		"Ordinary": {
			reason: "a namespace without an exclusion is covered",
			labels: labels.Set{nameLabel: "default"},
			want:   true,
		},
		"Own": {
			reason: "binding Prebind's pods must not need Prebind",
			labels: labels.Set{nameLabel: namespace},
		},
		"KubeSystem": {
			reason: "network and DNS come before Prebind",
			labels: labels.Set{nameLabel: "kube-system"},
		},
		"CertManager": {
			reason: "Prebind's certificate comes before Prebind",
			labels: labels.Set{nameLabel: "cert-manager"},
		},
		"Exempt": {
			reason: "the operator's label takes a namespace out",
			labels: labels.Set{nameLabel: "default", "prebind.dev/exempt": "true"},
		},
		"ExemptWithoutValue": {
			reason: "in an emergency the value must not matter",
			labels: labels.Set{nameLabel: "default", "prebind.dev/exempt": ""},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, selector.Matches(tc.labels), tc.reason)
		})
	}
}

// The API server's way to a replica, from the webhook configuration over the
// Service to the container, and the certificate that it must find there.
func TestWebhookIsReached(t *testing.T) {
	objects := render(t, everything)
	configuration := get[*admissionregistrationv1.MutatingWebhookConfiguration](t, objects, "prebind")
	require.Len(t, configuration.Webhooks, 1)
	called := configuration.Webhooks[0].ClientConfig.Service
	require.NotNil(t, called)
	service := get[*corev1.Service](t, objects, called.Name)
	require.Len(t, service.Spec.Ports, 1)
	port := service.Spec.Ports[0]
	pod := get[*appsv1.Deployment](t, objects, "prebind").Spec.Template
	require.Len(t, pod.Spec.Containers, 1)
	container := pod.Spec.Containers[0]
	certificate := get[*certmanagerv1.Certificate](t, objects, "prebind-webhook")

	containerPorts := map[string]int32{}
	for _, p := range container.Ports {
		containerPorts[p.Name] = p.ContainerPort
	}
	mounts := map[string]string{}
	for _, m := range container.VolumeMounts {
		mounts[m.MountPath] = m.Name
	}
	secrets := map[string]string{}
	for _, v := range pod.Spec.Volumes {
		if v.Secret != nil {
			secrets[v.Name] = v.Secret.SecretName
		}
	}

	cases := map[string]struct {
		reason    string
		got, want any
	}{
		"ServiceNamespace": {
			reason: "the webhook configuration must name the namespace of the Service",
			got:    called.Namespace,
			want:   service.Namespace,
		},
		"ServicePort": {
			reason: "the API server calls a port that the Service has",
			got:    *called.Port,
			want:   port.Port,
		},
		"ContainerPort": {
			reason: "the Service's target is the port on which the program serves by default",
			got:    containerPorts[port.TargetPort.String()],
			want:   int32(9443),
		},
		"ServiceSelectsPods": {
			reason: "the Service must find the replicas",
			got:    labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(pod.Labels)),
			want:   true,
		},
		"MetricsPort": {
			reason: "it is the program's default",
			got:    containerPorts["metrics"],
			want:   int32(8080),
		},
		"HealthPort": {
			reason: "it is the program's default",
			got:    containerPorts["health"],
			want:   int32(8081),
		},
		"DNSNames": {
			reason: "the API server verifies the certificate against the Service's name",
			got:    certificate.Spec.DNSNames,
			want: []string{
				service.Name + "." + service.Namespace + ".svc",
				service.Name + "." + service.Namespace + ".svc.cluster.local",
			},
		},
		"CABundle": {
			reason: "cert-manager must put in the CA of that very certificate",
			got:    configuration.Annotations[certmanagerv1.WantInjectAnnotation],
			want:   certificate.Namespace + "/" + certificate.Name,
		},
		"MountedSecret": {
			reason: "the program must read the certificate that cert-manager makes",
			got:    secrets[mounts["/etc/prebind/tls"]],
			want:   certificate.Spec.SecretName,
		},
		"Arguments": {
			reason: "the program must read it where it is mounted, and the configuration where that is",
			got:    container.Args,
			want:   []string{"serve", "--cert-dir=/etc/prebind/tls", "--config=/etc/prebind/config/config.yaml", "--pod-name=$(POD_NAME)"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, tc.got, tc.reason)
		})
	}
}

func TestCertificates(t *testing.T) {
	objects := render(t, everything)
	selfSigned := get[*certmanagerv1.Issuer](t, objects, "prebind-selfsigned")
	authority := get[*certmanagerv1.Certificate](t, objects, "prebind-ca")
	issuer := get[*certmanagerv1.Issuer](t, objects, "prebind-ca")
	serving := get[*certmanagerv1.Certificate](t, objects, "prebind-webhook")
	require.NotNil(t, issuer.Spec.CA)
	require.NotNil(t, authority.Spec.Duration)
	require.NotNil(t, authority.Spec.RenewBefore)
	require.NotNil(t, serving.Spec.Duration)
	require.NotNil(t, serving.Spec.RenewBefore)

	reference := func(name string) certmanagermetav1.IssuerReference {
		return certmanagermetav1.IssuerReference{Group: "cert-manager.io", Kind: "Issuer", Name: name}
	}
	key := &certmanagerv1.CertificatePrivateKey{
		Algorithm:      certmanagerv1.ECDSAKeyAlgorithm,
		Size:           256,
		RotationPolicy: certmanagerv1.RotationPolicyAlways,
	}
	cases := map[string]struct {
		reason    string
		got, want any
	}{
		"SelfSigned":      {reason: "the root signs itself", got: selfSigned.Spec.SelfSigned != nil, want: true},
		"AuthorityIssuer": {reason: "the CA is the self-signed root", got: authority.Spec.IssuerRef, want: reference(selfSigned.Name)},
		"AuthorityIsCA":   {reason: "it must be allowed to sign", got: authority.Spec.IsCA, want: true},
		"AuthorityName":   {reason: "a CA without a name is not valid X.509", got: authority.Spec.CommonName, want: "prebind-ca"},
		"AuthorityKey":    {reason: "P-256, with a new key at each renewal", got: authority.Spec.PrivateKey, want: key},
		"IssuerSecret":    {reason: "the issuer signs with the CA's key", got: issuer.Spec.CA.SecretName, want: authority.Spec.SecretName},
		"ServingIssuer":   {reason: "the serving certificate is signed by the CA", got: serving.Spec.IssuerRef, want: reference(issuer.Name)},
		"ServingIsNoCA":   {reason: "its key lies in the pods and must sign nothing", got: serving.Spec.IsCA, want: false},
		"ServingKey":      {reason: "P-256, with a new key at each renewal", got: serving.Spec.PrivateKey, want: key},
		"ServingUsages": {
			reason: "it serves and does nothing else",
			got:    serving.Spec.Usages,
			want:   []certmanagerv1.KeyUsage{certmanagerv1.UsageDigitalSignature, certmanagerv1.UsageServerAuth},
		},
		"AuthorityOutlivesServing": {
			reason: "a certificate signed just before the CA is renewed must not outlive the old CA",
			got:    serving.Spec.Duration.Duration <= authority.Spec.RenewBefore.Duration,
			want:   true,
		},
		"TimeToNotice": {
			reason: "two weeks at least between a renewal that fails and the outage",
			got:    serving.Spec.RenewBefore.Duration >= 14*24*time.Hour,
			want:   true,
		},
		"RenewBeforeEnd": {
			reason: "cert-manager refuses a renewal that is due before the certificate begins",
			got: serving.Spec.RenewBefore.Duration < serving.Spec.Duration.Duration &&
				authority.Spec.RenewBefore.Duration < authority.Spec.Duration.Duration,
			want: true,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, tc.got, tc.reason)
		})
	}
}
