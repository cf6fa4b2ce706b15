// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"
)

// etcdPeer is the key, in Cluster.ports, of the port that a single etcd has to
// have for its peers.
const etcdPeer = "etcd-peer"

// bothAPIServers is the key, in Cluster.ports, of the port of [Cluster.spreadConnections].
const bothAPIServers = "both-kube-apiservers"

var schedulerConfigFiles = map[string]string{Scheduler: "scheduler.yaml", SecondScheduler: "second-scheduler.yaml"}

// prepare makes everything that the components find when they start: the folder,
// ports, certificates, credentials and configuration files.
func (c *Cluster) prepare(ctx context.Context) error {
	var err error
	if c.dir, err = os.MkdirTemp("", "prebind-cluster-"); err != nil {
		return fmt.Errorf("make a folder for the cluster: %w", err)
	}
	// The name of the binary also selects the component.
	if err := os.Symlink(c.commands[Kubectl][0], c.file(Kubectl)); err != nil {
		return err
	}
	if err := c.reservePorts(ctx); err != nil {
		return err
	}
	if c.pki, err = newPKI(c.file("pki")); err != nil {
		return err
	}
	if err := c.makeCredentials(); err != nil {
		return err
	}
	if err := c.writeConfigs(ctx); err != nil || c.o.Beside == "" {
		return err
	}
	return c.spreadConnections(ctx)
}

func (c *Cluster) reservePorts(ctx context.Context) error {
	var err error
	for _, name := range append(c.o.components(), etcdPeer, bothAPIServers) {
		if c.ports[name], err = c.reserved.reserve(ctx); err != nil {
			return fmt.Errorf("reserve a port for %s: %w", name, err)
		}
	}
	return nil
}

// makeCredentials gives the administrator and each component an identity.
func (c *Cluster) makeCredentials() error {
	const administrator, masters = "prebind-test-admin", "system:masters"
	var err error
	if c.admin, err = c.UserConfig(administrator, masters); err != nil {
		return err
	}
	if c.client, err = kubernetes.NewForConfig(c.admin); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	if c.adminPath, err = c.userKubeconfig("admin", administrator, masters); err != nil {
		return err
	}
	for component, user := range map[string]string{
		ControllerManager: "system:kube-controller-manager",
		Scheduler:         "system:kube-scheduler",
		SecondScheduler:   "system:kube-scheduler",
		Provisioner:       provisionerUser,
		Kwok:              kwokUser,
	} {
		if c.kubeconfigs[component], err = c.userKubeconfig(component, user); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) writeConfigs(ctx context.Context) error {
	egressConfig, err := c.listenForEgress(ctx)
	if err != nil {
		return err
	}
	schedulerConfig, err := withConnection(c.o.SchedulerConfig, c.kubeconfigs[Scheduler])
	if err != nil {
		return err
	}
	secondConfig, err := withConnection(secondSchedulerConfig, c.kubeconfigs[SecondScheduler])
	if err != nil {
		return err
	}
	if err := c.writeAdmissionConfig(); err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		egressConfigFile:                      egressConfig,
		schedulerConfigFiles[Scheduler]:       schedulerConfig,
		schedulerConfigFiles[SecondScheduler]: secondConfig,
		auditPolicyFile:                       []byte(auditPolicy),
	} {
		if err := os.WriteFile(c.file(name), content, 0o644); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return nil
}

// URL returns the address that a component serves on, such as
// https://127.0.0.1:20443, also for its /metrics. It stays the same over restarts
// of the component. The serving certificates are signed by Config's CA.
func (c *Cluster) URL(component string) string {
	if component == APIServer && c.o.Beside != "" {
		return "https://" + address(c.ports[bothAPIServers])
	}
	return c.scheme(component) + address(c.ports[component])
}

func (c *Cluster) scheme(component string) string {
	switch component {
	case Etcd, Provisioner, Kwok:
		return "http://"
	default:
		return "https://"
	}
}

// The profiles of [DefaultSchedulerConfig], for a pod's spec.schedulerName.
const (
	// DefaultScheduler is kube-scheduler as it comes: it makes the volumes ready
	// itself, in its PreBind, and then posts the Binding.
	DefaultScheduler = "default-scheduler"
	// NoPreBindScheduler is the same kube-scheduler with its VolumeBinding
	// plugin switched off at the PreBind point only. It still chooses nodes that
	// the volumes can be reached from, but posts the Binding at once and leaves
	// it to others to make the volumes ready.
	NoPreBindScheduler = "no-prebind-scheduler"
)

// DefaultSchedulerConfig returns the KubeSchedulerConfiguration, in YAML, of one
// kube-scheduler with two profiles, DefaultScheduler and NoPreBindScheduler. The
// caller owns it.
func DefaultSchedulerConfig() []byte {
	return []byte(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: ` + DefaultScheduler + `
- schedulerName: ` + NoPreBindScheduler + `
  plugins:
    preBind:
      disabled:
      - name: VolumeBinding
`)
}

// secondSchedulerConfig is the configuration of [Options.SecondScheduler].
var secondSchedulerConfig = []byte(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: ` + SecondScheduler)

// withConnection sets what only this package knows in a scheduler configuration:
// the API server's address and that there is one scheduler only.
func withConnection(config []byte, kubeconfig string) ([]byte, error) {
	content := map[string]any{}
	if err := yaml.UnmarshalStrict(config, &content); err != nil {
		return nil, fmt.Errorf("read Options.SchedulerConfig: %w", err)
	}
	if err := errors.Join(
		unstructured.SetNestedField(content, kubeconfig, "clientConnection", "kubeconfig"),
		unstructured.SetNestedField(content, false, "leaderElection", "leaderElect"),
	); err != nil {
		return nil, fmt.Errorf("change Options.SchedulerConfig: %w", err)
	}
	return yaml.Marshal(content)
}
