// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package products

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	egv1a1 "github.com/envoyproxy/gateway/api/v1alpha1"
	"github.com/envoyproxy/gateway/internal/gatewayapi"
	"github.com/envoyproxy/gateway/internal/infrastructure/kubernetes/proxy"
	"github.com/envoyproxy/gateway/internal/ir"
	"github.com/envoyproxy/gateway/internal/utils/proto"
)

// With the variable of the documentation, Envoy's bootstrap configuration contains the zone that the policy writes, also if it
// looks like a number.
func TestEnvoyGateway(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "policy-recipes.md"))
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(page), "\n## Envoy Gateway\n")
	_, section, _ = strings.Cut(section, "```yaml\n")
	documented, _, _ := strings.Cut(section, "```\n")
	var container egv1a1.KubernetesContainerSpec
	require.NoError(t, yaml.UnmarshalStrict([]byte(documented), &container))

	infra := ir.NewInfra()
	infra.Proxy.Metadata.Labels = map[string]string{
		gatewayapi.OwningGatewayNamespaceLabel: "default",
		gatewayapi.OwningGatewayNameLabel:      "eg",
	}
	infra.Proxy.Config = &egv1a1.EnvoyProxy{Spec: egv1a1.EnvoyProxySpec{Provider: &egv1a1.EnvoyProxyProvider{
		Type: egv1a1.EnvoyProxyProviderTypeKubernetes,
		Kubernetes: &egv1a1.EnvoyProxyKubernetesProvider{
			EnvoyDeployment: &egv1a1.KubernetesDeploymentSpec{Container: &container},
		},
	}}}
	render, err := proxy.NewResourceRender(t.Context(), controller{}, infra)
	require.NoError(t, err)
	deployment, err := render.Deployment()
	require.NoError(t, err)
	pod := &deployment.Spec.Template

	const variable = "ENVOY_SERVICE_ZONE"
	key := annotationOf(t, pod, "envoy", variable)
	args := containerOf(t, pod, "envoy").Args
	config := args[slices.Index(args, "--config-yaml")+1]
	for _, zone := range []string{"zone-b", "1"} {
		value := strconv.Quote(zone)
		requireWritten(t, map[string]string{key: value}, "envoy-zone", pod, map[string]string{corev1.LabelTopologyZone: zone})
		var bootstrap bootstrapv3.Bootstrap
		require.NoError(t, proto.FromYAML([]byte(strings.ReplaceAll(config, "$("+variable+")", value)), &bootstrap))
		assert.Equal(t, zone, bootstrap.GetNode().GetLocality().GetZone())
	}
}

// controller is an Envoy Gateway with the default configuration.
type controller struct{}

func (controller) GetControllerNamespace() string { return "envoy-gateway-system" }

func (controller) GetDNSDomain() string { return "cluster.local" }

func (controller) GetEnvoyGateway() *egv1a1.EnvoyGateway { return egv1a1.DefaultEnvoyGateway() }

func (controller) GetOwnerReferenceUID(context.Context, *ir.Infra) (map[string]types.UID, error) {
	return nil, nil
}

func (controller) GetResourceNamespace(*ir.Infra) string { return "envoy-gateway-system" }
