// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"embed"
	"maps"
	"strings"
	"text/template"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

// manifests are the objects that checks create.
//
//go:embed objects/*.yaml
var manifests embed.FS

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
	text, err := manifests.ReadFile("objects/pod.yaml")
	if err == nil {
		err = yaml.UnmarshalStrict(text, pod)
	}
	if err != nil { // The file is a part of the binary.
		panic(err)
	}
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
