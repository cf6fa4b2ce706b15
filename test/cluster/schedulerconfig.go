// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"

	"sigs.k8s.io/yaml"
)

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
	set := func(section, key string, value any) {
		values, ok := content[section].(map[string]any)
		if !ok {
			values = map[string]any{}
			content[section] = values
		}
		values[key] = value
	}
	set("clientConnection", "kubeconfig", kubeconfig)
	set("leaderElection", "leaderElect", false)
	out, err := yaml.Marshal(content)
	if err != nil {
		return nil, fmt.Errorf("write the scheduler's configuration: %w", err)
	}
	return out, nil
}
