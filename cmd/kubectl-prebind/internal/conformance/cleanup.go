// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// ErrLeftovers means that objects were not removed. The text contains the command that removes them.
var ErrLeftovers = errors.New("objects of the run were not removed")

// cleanupTimeout limits the removal of the objects of a run.
const cleanupTimeout = 2 * time.Minute

// byHand returns the commands that remove the objects of a run. The driver remains in the CSINodes; it has no effect.
func byHand(run string) string {
	return fmt.Sprintf("kubectl label nodes --all %s- %s-\nkubectl delete namespace %s", releaseLabel(run, "wait"), releaseLabel(run, "binding-annotations"), run)
}

// releaseLabel returns the key of the node label that ends the wait of the pod. No node has it before.
func releaseLabel(run, pod string) string { return run + ".conformance.prebind.dev/" + pod }

// labelNode sets a label of the node or, with nil, removes it.
func labelNode(ctx context.Context, client kubernetes.Interface, node, key string, value *string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]*string{key: value}}})
	if err == nil {
		_, err = client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		return fmt.Errorf("changing the label %s of node %s: %w", key, node, err)
	}
	return nil
}

// setDriver adds the driver of the run to the CSINode of a node, or removes it. A node without a CSINode stays without one.
func setDriver(ctx context.Context, client kubernetes.Interface, node, run string, remove bool) error {
	driver := map[string]any{"name": run, "nodeID": node}
	if remove {
		driver = map[string]any{"name": run, "$patch": "delete"}
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"drivers": []any{driver}}})
	if err == nil {
		_, err = client.StorageV1().CSINodes().Patch(ctx, node, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("changing the drivers of CSINode %s: %w", node, err)
	}
	return nil
}

// unmark removes the labels and drivers of the run from all nodes.
func unmark(ctx context.Context, client kubernetes.Interface, run string) error {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing nodes: %w", err)
	}
	var errs []error
	for _, n := range nodes.Items {
		for key := range n.Labels {
			if strings.HasPrefix(key, releaseLabel(run, "")) {
				errs = append(errs, labelNode(ctx, client, n.Name, key, nil))
			}
		}
	}
	csiNodes, err := client.StorageV1().CSINodes().List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return errors.Join(errs...) // Without this permission, the run has made no check with volumes.
	case err != nil:
		return fmt.Errorf("listing CSINodes: %w", err)
	}
	for _, n := range csiNodes.Items {
		if slices.ContainsFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == run }) {
			errs = append(errs, setDriver(ctx, client, n.Name, run, true))
		}
	}
	return errors.Join(errs...)
}

// remove removes the objects of a run, and waits until they are gone. It retries for a limited time.
func remove(ctx context.Context, client kubernetes.Interface, run string) error {
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	last := errors.New("the namespace still exists")
	for _, step := range []func() (gone bool, err error){
		func() (bool, error) { err := unmark(ctx, client, run); return err == nil, err },
		func() (bool, error) {
			// The garbage collector deletes the objects that belong to the namespace first.
			err := client.CoreV1().Namespaces().Delete(ctx, run, metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)})
			return apierrors.IsNotFound(err), err
		},
	} {
		err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(context.Context) (bool, error) {
			gone, err := step()
			if err != nil && ctx.Err() == nil {
				last = err
			}
			return gone, nil
		})
		if err != nil {
			return fmt.Errorf("%w: %w; remove them with:\n%s", ErrLeftovers, last, byHand(run))
		}
	}
	return nil
}

// finish removes the objects of the run, also after the context has ended. A second interrupt ends the process.
func (s *session) finish(ctx context.Context) error {
	run := s.ns.Name
	if ctx.Err() != nil {
		s.say("interrupted: removing the objects of the run, at most for %s; interrupt again to exit at once, and remove them with:\n%s", cleanupTimeout, byHand(run))
	}
	began := time.Now()
	if err := remove(context.WithoutCancel(ctx), s.client, run); err != nil {
		return err
	}
	s.say("removed all objects of the run (%s)", seconds(time.Since(began)))
	return nil
}

// earlier returns the namespaces with the prefix of earlier runs, or of runs in progress.
func earlier(ctx context.Context, client kubernetes.Interface, prefix string) ([]string, error) {
	list, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: managedBy + "=" + managedByValue + ",!" + runLabel})
	if err != nil {
		return nil, fmt.Errorf("listing namespaces: %w", err)
	}
	var runs []string
	for _, ns := range list.Items {
		if strings.HasPrefix(ns.Name, prefix) {
			runs = append(runs, ns.Name)
		}
	}
	return runs, nil
}

// Cleanup removes the objects of all runs with the namespace prefix, also of runs in progress, and returns the names of
// their namespaces.
func Cleanup(ctx context.Context, client kubernetes.Interface, prefix string) ([]string, error) {
	runs, err := earlier(ctx, client, prefix)
	errs := []error{err}
	for _, run := range runs {
		errs = append(errs, remove(ctx, client, run))
	}
	return runs, errors.Join(errs...)
}
