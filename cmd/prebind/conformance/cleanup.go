// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// ErrLeftovers means that objects were not removed. The text contains the commands that remove them.
var ErrLeftovers = errors.New("objects of the run were not removed")

// mergeLabels returns the labels of both.
func mergeLabels(a, b map[string]string) map[string]string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// ByHand returns the commands that remove the objects and labels of a run.
func ByHand(run string) string {
	var labels []string
	for _, pod := range releasedPods {
		labels = append(labels, releaseLabel(run, pod)+"-")
	}
	return fmt.Sprintf(`kubectl label nodes --all %[3]s
kubectl delete namespace %[1]s --ignore-not-found
kubectl delete namespaces,persistentvolumes,storageclasses,validatingadmissionpolicybindings,validatingadmissionpolicies -l %[2]s=%[1]s`, run, runLabel, strings.Join(labels, " "))
}

// stopper is a second context for the cleanup: it ends when the user asks again.
type stopper struct{}

// Impatient returns a context for Run whose second interrupt is the end of the given context: the cleanup stops then.
func Impatient(ctx, second context.Context) context.Context {
	return context.WithValue(ctx, stopper{}, second)
}

// finish removes the objects of the run. It works after the context has ended.
func (s *session) finish(ctx context.Context) error {
	if s.Keep {
		s.say("kept namespace %s; remove the objects with:\n%s", s.ns, ByHand(s.ns))
		return nil
	}
	interrupted := ctx.Err() != nil
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.CleanupTimeout)
	defer cancel()
	if second, ok := ctx.Value(stopper{}).(context.Context); ok {
		defer context.AfterFunc(second, cancel)()
	}
	if interrupted {
		s.say("interrupted: removing the objects of the run, at most for %s; interrupt again to exit at once", s.CleanupTimeout)
	}
	began := time.Now()
	if err := remove(clean, s.client, s.ns); err != nil {
		return fmt.Errorf("%w: %w; remove them with:\n%s", ErrLeftovers, err, ByHand(s.ns))
	}
	s.say("removed all objects of the run (%s)", seconds(time.Since(began)))
	return nil
}

// remove removes the objects of a run, and waits until they are gone. It retries until the context ends.
func remove(ctx context.Context, client kubernetes.Interface, run string) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		var left int
		left, last = removeOnce(ctx, client, run)
		return last == nil && left == 0, nil
	})
	switch {
	case err == nil:
		return nil
	case last != nil && !errors.Is(last, context.Canceled) && !errors.Is(last, context.DeadlineExceeded):
		return last
	default:
		return errors.New("some objects still exist")
	}
}

// kind is a kind of objects of a run.
type kind struct {
	name   string
	list   func(ctx context.Context, o metav1.ListOptions) ([]metav1.Object, error)
	delete func(ctx context.Context, name string, o metav1.DeleteOptions) error
}

// removeOnce deletes all objects of the run that are not being deleted, and returns how many exist.
func removeOnce(ctx context.Context, client kubernetes.Interface, run string) (int, error) {
	var errs []error
	left := 0
	count := func(err error) {
		switch {
		case err == nil:
			left++
		case !apierrors.IsNotFound(err) && !apierrors.IsConflict(err):
			errs = append(errs, err)
		default:
			left++
		}
	}
	// Policies first: they act on other objects. Volumes last: claims use them.
	for _, k := range kinds(client) {
		objects, err := k.list(ctx, metav1.ListOptions{LabelSelector: runLabel + "=" + run})
		if apierrors.IsForbidden(err) {
			// The checks that create these objects were not selected.
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("listing %s: %w", k.name, err))
			continue
		}
		for _, o := range objects {
			if o.GetDeletionTimestamp() != nil {
				left++
				continue
			}
			count(k.delete(ctx, o.GetName(), metav1.DeleteOptions{}))
		}
	}
	for _, pod := range releasedPods {
		if err := unlabel(ctx, client, releaseLabel(run, pod)); err != nil {
			errs = append(errs, fmt.Errorf("removing a label of nodes: %w", err))
		}
	}
	// The namespace of the run has no label with its own generated name.
	ns, err := client.CoreV1().Namespaces().Get(ctx, run, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		errs = append(errs, fmt.Errorf("reading namespace %s: %w", run, err))
	case ns.Labels[managedBy] != managedByValue:
		errs = append(errs, fmt.Errorf("namespace %s does not have the label %s=%s", run, managedBy, managedByValue))
	case ns.DeletionTimestamp != nil:
		left++
	default:
		count(client.CoreV1().Namespaces().Delete(ctx, run, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(ns.UID))}))
	}
	return left, errors.Join(errs...)
}

// unlabel removes the label from all nodes.
func unlabel(ctx context.Context, client kubernetes.Interface, key string) error {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: key})
	if err != nil {
		return err
	}
	for i := range nodes.Items {
		if err := labelNode(ctx, client, nodes.Items[i].Name, key, nil); err != nil {
			return err
		}
	}
	return nil
}

// leftovers returns the namespaces with the prefix of earlier runs, or of runs in progress.
func leftovers(ctx context.Context, client kubernetes.Interface, prefix string) ([]string, error) {
	list, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: managedBy + "=" + managedByValue})
	if err != nil {
		return nil, fmt.Errorf("listing namespaces: %w", err)
	}
	var runs []string
	for _, ns := range list.Items {
		if ns.Labels[runLabel] == "" && strings.HasPrefix(ns.Name, prefix) {
			runs = append(runs, ns.Name)
		}
	}
	return runs, nil
}

// reportLeftovers reports the namespaces of earlier runs.
func (s *session) reportLeftovers(ctx context.Context) {
	if runs, err := leftovers(ctx, s.client, s.NamespacePrefix); err == nil && len(runs) > 0 {
		s.say("found namespaces of earlier runs, or of runs in progress: %s; remove them with 'prebind conformance --cleanup'", strings.Join(runs, ", "))
	}
}

// Cleanup removes the objects of all runs with the namespace prefix, also of runs in progress, and returns the names of
// their namespaces.
func Cleanup(ctx context.Context, config *rest.Config, o Options) ([]string, error) {
	client, err := kubernetes.NewForConfig(adjust(config))
	if err != nil {
		return nil, fmt.Errorf("setting up a client: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, o.CleanupTimeout)
	defer cancel()
	return cleanup(ctx, client, o.NamespacePrefix)
}

func cleanup(ctx context.Context, client kubernetes.Interface, prefix string) ([]string, error) {
	runs, err := leftovers(ctx, client, prefix)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, run := range runs {
		if err := remove(ctx, client, run); err != nil {
			errs = append(errs, fmt.Errorf("%w: %w; remove them with:\n%s", ErrLeftovers, err, ByHand(run)))
		}
	}
	return runs, errors.Join(errs...)
}
