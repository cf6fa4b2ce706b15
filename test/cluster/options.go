// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"io"
	"time"
)

// Patience is the timeout of a wait of a test for something that happens soon. It matters only if something is stuck, because the
// machines that tests run on are small and busy.
const Patience = 3 * time.Minute

// startTimeout is how long [Start] may take, a build not included: the machines
// that tests run on are small and busy.
const startTimeout = 5 * time.Minute

// ProvisionerName is the test provisioner in StorageClasses, and
// the name of the CSIDriver object that comes with it. Parameters of StorageClasses set its behavior:
//
//	delay: 15s             how long each call takes
//	fail: none             how it ends: none, error (repeated, the selected node
//	                       stays) or reschedule (the selected node is removed)
//	failNodes: node-1,...  fail for these selected nodes only
//	failTimes: "1"         fail the first calls for each claim only
//	affinity: zone         where the volume is reachable from: the selected
//	                       node's zone, its hostname, or none (everywhere); by
//	                       default the zone if the node has one, else hostname
//
// It uses the library of external-provisioner, but no CSI driver. It differs from external-provisioner as follows
// (see [Cluster.StartCSI]):
//
//   - It provisions on every node. External-provisioner requires a CSINode with topology keys, and otherwise removes the selected node.
//   - It ignores allowedTopologies, and publishes no capacity.
//   - It removes the selected node for reschedule and for deleted nodes, external-provisioner for ResourceExhausted and missing CSINodes.
//   - Its calls have no timeout. Those of external-provisioner do, and the creation of the volume can continue without them.
//   - It repeats failed calls after 1 s to 10 s. External-provisioner waits up to 5 minutes.
//   - It accepts claims with a selector.
//   - It has no storage that a volume could be leaked in.
const ProvisionerName = "test.prebind.dev"

// StartDelay is the annotation of a pod with the time from its bind until [Options.Kwok] makes it Running and Ready,
// such as 3s. A change of the pod begins the time again.
const StartDelay = "pod-ready.stage.kwok.x-k8s.io/delay"

// Options say what [Start] starts. The zero value is a whole control plane.
type Options struct {
	// Out gets lines about the progress, for a human; nil is nowhere.
	Out io.Writer
	// SchedulerConfig is a KubeSchedulerConfiguration in YAML; nil is
	// [DefaultSchedulerConfig]. How to reach the API server and leader election
	// are set by this package in any case.
	SchedulerConfig []byte
	// ExtraArgs are added to the arguments of a component, such as
	// {Scheduler: {"--v=4"}}, and win over those that this package gives.
	ExtraArgs map[string][]string
	// Audit has the API server log each Binding, see [Cluster.AuditEvents].
	Audit bool
	// WebhookClient is the user of the client certificate with which the API server calls webhooks. The CA in
	// [Cluster.CAFile] signs it. Empty means no certificate.
	WebhookClient string
	// SecondScheduler adds a second kube-scheduler, with one profile of that name.
	SecondScheduler bool
	// Beside is an older minor version of Kubernetes, such as 1.36, for an upgrade in progress: [OtherAPIServer], kube-controller-manager
	// and kube-scheduler have it. The address of the API server leads to both API servers in turn. Empty means one API server.
	Beside string
	// WithoutScheduler leaves kube-scheduler out.
	WithoutScheduler bool
	// WithoutProvisioner leaves the test provisioner out.
	WithoutProvisioner bool
	// Kwok adds kwok, which acts as the kubelet of all nodes: bound pods become Running and Ready, pods of Jobs complete, and
	// deleted pods disappear. It does not change nodes, ignores volumes, and does not touch the conditions of running pods.
	// Pods start immediately, or after the time in ExtraArgs {Kwok: {"--start-delay=2s"}} or in [StartDelay].
	// [Process.Stop] of it keeps bound pods Pending.
	Kwok bool
}

// complete returns the options with their defaults.
func (o Options) complete() Options {
	if o.Out == nil {
		o.Out = io.Discard
	}
	if o.SchedulerConfig == nil {
		o.SchedulerConfig = DefaultSchedulerConfig()
	}
	return o
}

// servers are etcd and the API servers, in the order to start them in.
func (o Options) servers() []string {
	if o.Beside != "" {
		return []string{Etcd, APIServer, OtherAPIServer}
	}
	return []string{Etcd, APIServer}
}

// components are those that run, in the order to start them in.
func (o Options) components() []string {
	out := o.servers()
	out = append(out, ControllerManager)
	if !o.WithoutScheduler {
		out = append(out, Scheduler)
	}
	if o.SecondScheduler {
		out = append(out, SecondScheduler)
	}
	if !o.WithoutProvisioner {
		out = append(out, Provisioner)
	}
	if o.Kwok {
		out = append(out, Kwok)
	}
	return out
}
