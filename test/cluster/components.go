// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// serviceRange is where Services get their ClusterIP from, and apiServiceIP is
// the first address of it, which the Service kubernetes gets.
const (
	serviceRange = "10.0.0.0/24"
	apiServiceIP = "10.0.0.1"
)

// args returns a component's command line, the caller's extra arguments last so
// that they win.
func (c *Cluster) args(component string) []string {
	var out []string
	switch component {
	case Etcd:
		out = c.etcdArgs()
	case APIServer, OtherAPIServer:
		out = c.apiServerArgs(component)
	case ControllerManager:
		out = c.controllerManagerArgs()
	case Scheduler, SecondScheduler:
		// The configuration names its kubeconfig.
		out = slices.Concat([]string{"--config=" + c.file(schedulerConfigFiles[component])}, c.delegationArgs(component), c.servingArgs(component))
	case Provisioner:
		out = []string{
			"--kubeconfig=" + c.kubeconfigs[Provisioner], "--provisioner=" + ProvisionerName, "--health-bind-address=" + address(c.ports[Provisioner]),
		}
	case Kwok:
		out = []string{"--kubeconfig=" + c.kubeconfigs[Kwok], "--health-bind-address=" + address(c.ports[Kwok])}
	}
	return append(out, c.o.ExtraArgs[component]...)
}

func (c *Cluster) etcdArgs() []string {
	client, peer := c.URL(Etcd), "http://"+address(c.ports[etcdPeer])
	return []string{
		"--name=default",
		"--data-dir=" + c.file("etcd"),
		"--listen-client-urls=" + client,
		"--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=default=" + peer,
		// The data need not outlive the machine, only the process.
		"--unsafe-no-fsync",
		"--quota-backend-bytes=4294967296",
		"--log-level=warn",
	}
}

func (c *Cluster) apiServerArgs(component string) []string {
	out := []string{
		"--etcd-servers=" + c.URL(Etcd),
		"--advertise-address=" + loopback,
		// An endpoint on a loopback address is not valid, so none is published.
		"--endpoint-reconciler-type=none",
		"--authorization-mode=Node,RBAC",
		"--client-ca-file=" + c.pki.file("ca.crt"),
		"--service-cluster-ip-range=" + serviceRange,
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + c.pki.file("ca.key"),
		"--service-account-signing-key-file=" + c.pki.file("ca.key"),
		"--egress-selector-config-file=" + c.file(egressConfigFile),
		"--allow-privileged=true",
		"--profiling=false",
	}
	if c.o.Audit {
		out = append(out,
			"--audit-policy-file="+c.file(auditPolicyFile),
			"--audit-log-path="+c.AuditLog(),
			"--audit-log-format=json",
			// Written before the client has its answer, so that a test can
			// count as soon as it has that.
			"--audit-log-mode=blocking",
		)
	}
	if c.o.WebhookClient != "" {
		out = append(out, "--admission-control-config-file="+c.file(admissionConfigFile))
	}
	return append(out, c.servingArgs(component)...)
}

// AddAPIServer starts another API server and waits until it is ready. It returns its address. The caller stops it before the cluster.
func (c *Cluster) AddAPIServer(ctx context.Context, name string) (*Process, string, error) {
	listen, err := c.ReserveAddress(ctx)
	if err != nil {
		return nil, "", err
	}
	_, port, err := net.SplitHostPort(listen)
	if err != nil {
		return nil, "", err
	}
	command := c.commands[APIServer]
	process := NewProcess(ProcessOptions{
		Name:    name,
		Path:    command[0],
		Args:    slices.Concat(command[1:], c.args(APIServer), []string{"--secure-port=" + port}), // The last of two equal flags applies.
		LogFile: c.file(filepath.Join("logs", name+".log")),
		Health:  c.serves("https://" + listen + "/readyz"),
		Grace:   graces[APIServer],
	})
	return process, "https://" + listen, process.Run(ctx)
}

func (c *Cluster) controllerManagerArgs() []string {
	out := []string{
		"--leader-elect=false",
		"--use-service-account-credentials=true",
		"--service-account-private-key-file=" + c.pki.file("ca.key"),
		"--root-ca-file=" + c.pki.file("ca.crt"),
		"--cluster-signing-cert-file=" + c.pki.file("ca.crt"),
		"--cluster-signing-key-file=" + c.pki.file("ca.key"),
		// No kubelet renews a lease here: nodes must stay as they were made.
		"--node-monitor-grace-period=24h",
		// The default pace would make tests wait for the controllers' client.
		"--kube-api-qps=1000",
		"--kube-api-burst=2000",
		"--profiling=false",
	}
	out = append(out, "--kubeconfig="+c.kubeconfigs[ControllerManager])
	return slices.Concat(out, c.delegationArgs(ControllerManager), c.servingArgs(ControllerManager))
}

// delegationArgs let a component ask the API server who calls it, and whether
// they may: that protects its metrics.
func (c *Cluster) delegationArgs(component string) []string {
	path := c.kubeconfigs[component]
	return []string{"--authentication-kubeconfig=" + path, "--authorization-kubeconfig=" + path}
}

func (c *Cluster) servingArgs(component string) []string {
	return []string{
		"--bind-address=" + loopback,
		fmt.Sprintf("--secure-port=%d", c.ports[component]),
		"--tls-cert-file=" + c.pki.file("serving.crt"),
		"--tls-private-key-file=" + c.pki.file("serving.key"),
	}
}

const auditPolicyFile = "audit-policy.yaml"

// auditPolicy logs binds, by both of their paths, and nothing else.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [create]
  resources:
  - group: ""
    resources: [pods/binding, bindings]
- level: None
`

// AuditEvent is the part of an event of audit.k8s.io/v1 that tests read.
type AuditEvent struct {
	RequestURI string `json:"requestURI"`
	Verb       string `json:"verb"`
	User       struct {
		Username string `json:"username"`
	} `json:"user"`
	// ObjectRef is nil for requests that name no object.
	ObjectRef *struct {
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
	} `json:"objectRef"`
	ResponseStatus           *metav1.Status    `json:"responseStatus"`
	RequestReceivedTimestamp metav1.MicroTime  `json:"requestReceivedTimestamp"`
	Annotations              map[string]string `json:"annotations"`
}

// AuditLog returns the path of the API server's audit log, which is there from
// the first bind on if [Options.Audit] is set.
func (c *Cluster) AuditLog() string { return c.file("audit.log") }

// AuditEvents returns one event, at the level Metadata, for each answer that the
// API server has given to a bind, by either path, in order. Annotations contain the additions of webhooks. The event of a bind is there when its client has the answer, but
// not yet when the pod is bound. It is an error if [Options.Audit] is not set.
func (c *Cluster) AuditEvents() ([]AuditEvent, error) {
	if !c.o.Audit {
		return nil, errors.New("read the audit log: there is none: set Options.Audit")
	}
	content, err := os.ReadFile(c.AuditLog())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	var out []AuditEvent
	for line := range bytes.Lines(content) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // being written
		}
		var event AuditEvent
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("read the audit log: %w", err)
		}
		out = append(out, event)
	}
	return out, nil
}
