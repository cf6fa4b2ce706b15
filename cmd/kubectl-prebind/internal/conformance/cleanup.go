// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// cleanupTimeout limits each step of the removal of a run.
const cleanupTimeout = 2 * time.Minute

// again returns the command that removes the objects of a run.
func again(run string) string {
	return "kubectl prebind conformance --cleanup --namespace-prefix=" + run
}

// nodeLabel returns the key of the node label for a check. No node has it before.
func nodeLabel(run, check string) string { return run + ".conformance.prebind.dev/" + check }

// labelNode sets a label of the node to true or, with null, removes it.
func labelNode(ctx context.Context, client kubernetes.Interface, node, key, value string) error {
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, key, value)
	_, err := client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// Values of labelNode.
const (
	set   = `"true"`
	unset = "null"
)

// patchDriver patches an entry of the drivers in the CSINode of a node. A node without a CSINode stays without one.
func patchDriver(ctx context.Context, c kubernetes.Interface, node, driver string) error {
	patch := fmt.Appendf(nil, `{"spec":{"drivers":[%s]}}`, driver)
	_, err := c.StorageV1().CSINodes().Patch(ctx, node, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	return client.IgnoreNotFound(err)
}

// unmark removes the labels and drivers of the run from all nodes. A node with a driver of the run has a label for the check volume.
func unmark(ctx context.Context, c kubernetes.Interface, run string) error {
	nodes, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range nodes.Items {
		if n.Labels[nodeLabel(run, "volume")] != "" {
			err := patchDriver(ctx, c, n.Name, fmt.Sprintf(`{"name":%q,"$patch":"delete"}`, run))
			if err != nil {
				errs = append(errs, err)
				continue
			}
		}
		for key := range n.Labels {
			if strings.HasPrefix(key, nodeLabel(run, "")) {
				errs = append(errs, labelNode(ctx, c, n.Name, key, unset))
			}
		}
	}
	return errors.Join(errs...)
}

// remove removes the objects of a run, and waits until they are gone. It retries for a limited time.
func remove(ctx context.Context, c kubernetes.Interface, run string) error {
	t := &trial{session: &session{client: c}}
	t.do(func() {
		t.until(ctx, cleanupTimeout, func(ctx context.Context) (bool, error) { return true, unmark(ctx, c, run) })
		t.until(ctx, cleanupTimeout, func(ctx context.Context) (bool, error) {
			// The garbage collector deletes the objects that belong to the namespace first.
			err := c.CoreV1().Namespaces().Delete(ctx, run, metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)})
			if apierrors.IsNotFound(err) {
				return true, nil
			}
			return false, cmp.Or(err, errors.New("the namespace still exists"))
		})
	})
	if t.Status != "" {
		return fmt.Errorf("objects of the run were not removed: %s; remove them with: %s", t.Detail, again(run))
	}
	return nil
}

// finish removes the objects of the run, also after the context has ended. A second interrupt ends the process.
func (s *session) finish(ctx context.Context) error {
	run := s.ns.Name
	if ctx.Err() != nil {
		s.log.Printf("interrupted: removing the objects of the run; interrupt again to exit at once, and remove them with: %s", again(run))
	}
	began := time.Now()
	if err := remove(context.WithoutCancel(ctx), s.client, run); err != nil {
		return err
	}
	s.log.Printf("removed all objects of the run (%s)", seconds(time.Since(began)))
	return nil
}

// Cleanup removes the objects of all runs with the namespace prefix, also of runs in progress, and returns the names of
// their namespaces.
func Cleanup(ctx context.Context, client kubernetes.Interface, prefix string) ([]string, error) {
	list, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: managedBy + "=" + managedByValue + ",!" + runLabel})
	if err != nil {
		return nil, fmt.Errorf("listing namespaces: %w", err)
	}
	var runs []string
	var errs []error
	for _, ns := range list.Items {
		if strings.HasPrefix(ns.Name, prefix) {
			runs = append(runs, ns.Name)
			errs = append(errs, remove(ctx, client, ns.Name))
		}
	}
	return runs, errors.Join(errs...)
}
