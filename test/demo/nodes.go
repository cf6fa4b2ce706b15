// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

const (
	// newNode is a node whose CSI driver registers late: after registered.
	newNode    = "node-new"
	registered = 8 * time.Second
	// busyNode is the node on which burstPods start, atOnce at a time. Each pod starts in startDelay.
	busyNode   = "node-1"
	burstPods  = 6
	atOnce     = 2
	startDelay = 3 * time.Second
)

// lateDriver shows node-ready and announce: a pod on a node whose CSI driver is not registered.
func (d *demo) lateDriver(ctx context.Context) error {
	d.title("A node whose CSI driver is not registered")
	d.say("%s is Ready, but the agent of the CSI driver %s has not started on it. node-ready delays the bind", newNode, cluster.ProvisionerName)
	d.say("until the driver is registered, and announce shows the node in the pod's status until then.\n")
	if err := d.addNodes(ctx, "", cluster.Node(newNode)); err != nil {
		return err
	}
	s, err := d.begin(ctx, statefulSet("late", 1, fastClassName, gen.NodeSelector(corev1.LabelHostname, newNode)))
	if err != nil {
		return err
	}
	if err := s.follow(ctx, func(s *story) bool { return time.Since(s.begin) > registered }); err != nil {
		return err
	}
	csiNode, err := d.client.StorageV1().CSINodes().Get(ctx, newNode, metav1.GetOptions{})
	if err != nil {
		return err
	}
	csiNode.Spec.Drivers = []storagev1.CSINodeDriver{{Name: cluster.ProvisionerName, NodeID: newNode}}
	if _, err := d.client.StorageV1().CSINodes().Update(ctx, csiNode, metav1.UpdateOptions{}); err != nil {
		return err
	}
	s.tell(newNode, "CSI driver %s is registered", cluster.ProvisionerName)
	if err := s.follow(ctx, (*story).allRun); err != nil {
		return err
	}
	return s.table(ctx)
}

// burst shows start-limit: more pods for a node than may start on it at the same time.
func (d *demo) burst(ctx context.Context) error {
	d.title("More pods than may start at the same time")
	d.say("%d pods for %s, which each start in %s. With start-limit, %d pods start on a node\nat the same time. Two replicas together can exceed this limit by one pod.\n", burstPods, busyNode, startDelay, atOnce)
	s, err := d.begin(ctx, statefulSet("burst", burstPods, "",
		gen.NodeSelector(corev1.LabelHostname, busyNode), gen.Annotation(cluster.StartDelay, startDelay.String())))
	if err != nil {
		return err
	}
	if err := s.follow(ctx, (*story).allRun); err != nil {
		return err
	}
	if err := s.table(ctx); err != nil {
		return err
	}
	d.say("At most %d pods were bound and not Running at the same time.", s.starting)
	return nil
}
