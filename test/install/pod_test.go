// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestCommandLine(t *testing.T) {
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
	}
	mounts := map[string]string{"/etc/prebind/tls": "/here/tls", "/etc/prebind/config": "/here/config"}
	cases := map[string]struct {
		reason string
		pod    pod
		args   []string
		env    []string
		fails  string
	}{
		"PodName": {
			reason: "a variable can refer to the pod's name",
			pod:    pod{args: []string{"serve", "--pod-name=$(POD_NAME)"}, env: []corev1.EnvVar{field("POD_NAME", "metadata.name")}},
			args:   []string{"serve", "--pod-name=prebind-1"},
			env:    []string{"POD_NAME=prebind-1"},
		},
		"Namespace": {
			reason: "and its namespace",
			pod:    pod{args: []string{"$(NS)/$(NS)"}, env: []corev1.EnvVar{field("NS", "metadata.namespace")}},
			args:   []string{"prebind-system/prebind-system"},
			env:    []string{"NS=prebind-system"},
		},
		"Earlier": {
			reason: "a variable can refer to earlier variables",
			pod:    pod{args: []string{"$(B)"}, env: []corev1.EnvVar{{Name: "A", Value: "a"}, {Name: "B", Value: "$(A)b$(C)"}, {Name: "C", Value: "c"}}},
			args:   []string{"ab$(C)"},
			env:    []string{"A=a", "B=ab$(C)", "C=c"},
		},
		"Unknown": {
			reason: "unknown references stay, and $$ stands for $",
			pod:    pod{args: []string{"$(A)", "$$(A)", "$A", "$("}},
			args:   []string{"$(A)", "$(A)", "$A", "$("},
		},
		"Mounts": {
			reason: "a mount path maps to the local directory, a path with the same prefix does not",
			pod:    pod{mounts: mounts, args: []string{"--cert-dir=/etc/prebind/tls", "--config=/etc/prebind/config/config.yaml", "--x=/etc/prebind/tls2", "/etc/prebind/tls"}},
			args:   []string{"--cert-dir=/here/tls", "--config=/here/config/config.yaml", "--x=/etc/prebind/tls2", "/etc/prebind/tls"},
		},
		"OtherSource": {
			reason: "an unsupported variable is an error",
			pod:    pod{env: []corev1.EnvVar{field("IP", "status.podIP")}},
			fails:  "IP",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			args, env, err := tc.pod.commandLine("prebind-1")
			if tc.fails != "" {
				require.ErrorContains(t, err, tc.fails, tc.reason)
				return
			}
			require.NoError(t, err, tc.reason)
			assert.Equal(t, tc.args, args, tc.reason)
			assert.Equal(t, tc.env, env, tc.reason)
		})
	}
}
