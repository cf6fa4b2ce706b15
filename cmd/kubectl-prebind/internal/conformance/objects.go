// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"maps"
	"strings"
	"text/template"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// manifests are the objects that checks create.
//
//go:embed objects/*.yaml
var manifests embed.FS

//go:embed objects/pod.yaml
var podManifest []byte

const (
	// runLabel is the label of all objects of a run except its namespace. Its value is the name of this namespace.
	runLabel = "conformance.prebind.dev/run"
	// managedBy is the label by which a later run finds objects.
	managedBy      = "app.kubernetes.io/managed-by"
	managedByValue = "prebind-conformance"
	// noScheduler is the scheduler of pods that the command binds itself.
	noScheduler = "conformance.prebind.dev"
)

// apply creates the objects of the manifest. They belong to the namespace of the run, so that they are deleted with it. UID is that of the
// object to which they refer.
func (t *trial) apply(ctx context.Context, file string, uid types.UID) {
	parsed, err := template.ParseFS(manifests, "objects/"+file)
	t.must(err)
	var text bytes.Buffer
	t.must(parsed.Execute(&text, map[string]any{"Run": t.ns.Name, "UID": uid}))
	for document := range strings.SplitSeq(text.String(), "\n---\n") {
		object := &unstructured.Unstructured{}
		t.must(yaml.Unmarshal([]byte(document), &object.Object))
		labels := t.labels()
		maps.Copy(labels, object.GetLabels())
		object.SetLabels(labels)
		object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Namespace", Name: t.ns.Name, UID: t.ns.UID, BlockOwnerDeletion: new(true)}})
		resource, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
		_, err := t.dynamic.Resource(resource).Namespace(object.GetNamespace()).Create(ctx, object, metav1.CreateOptions{})
		t.must(err)
	}
}

// labels returns the labels of the objects of the run.
func (s *session) labels() map[string]string {
	return map[string]string{managedBy: managedByValue, runLabel: s.ns.Name}
}

// podOption changes a pod of the run.
type podOption func(pod *corev1.Pod)

// pod returns a pod for the scheduler under test.
func (s *session) pod(name string, options ...podOption) *corev1.Pod {
	pod := &corev1.Pod{}
	utilruntime.Must(yaml.UnmarshalStrict(podManifest, pod)) // The file is a part of the binary.
	pod.Namespace, pod.Name = s.ns.Name, name
	pod.Labels, pod.Annotations = s.labels(), map[string]string{}
	maps.Copy(pod.Labels, s.PodLabels)
	pod.Spec.SchedulerName = s.Scheduler
	pod.Spec.Containers[0].Image = s.Image
	for _, o := range options {
		o(pod)
	}
	return pod
}

// unscheduled keeps all schedulers away from the pod.
func unscheduled(pod *corev1.Pod) { pod.Spec.SchedulerName = noScheduler }

func annotation(key, value string) podOption {
	return func(pod *corev1.Pod) { pod.Annotations[key] = value }
}

// onNode pins the pod to a node.
func onNode(n corev1.Node) podOption {
	return onNodesWith(corev1.LabelHostname, n.Labels[corev1.LabelHostname])
}

// onNodesWith limits the pod to the nodes with the label.
func onNodesWith(key, value string) podOption {
	return func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{key: value} }
}

// usesClaim adds the claim of the check volume to the pod.
func usesClaim(pod *corev1.Pod) {
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "volume"},
	}})
}

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
	for _, n := range nodes.Items {
		if n.Labels[nodeLabel(run, "volume")] != "" {
			if err := patchDriver(ctx, c, n.Name, fmt.Sprintf(`{"name":%q,"$patch":"delete"}`, run)); err != nil {
				return err
			}
		}
		maps.DeleteFunc(n.Labels, func(key, _ string) bool { return !strings.HasPrefix(key, nodeLabel(run, "")) })
		for key := range n.Labels {
			if err := labelNode(ctx, c, n.Name, key, unset); err != nil {
				return err
			}
		}
	}
	return nil
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
	if err := remove(context.WithoutCancel(ctx), s.client, run); err != nil {
		return err
	}
	s.log.Print("removed all objects of the run")
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
