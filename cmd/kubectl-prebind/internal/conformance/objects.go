// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"maps"
	"strings"
	"text/template"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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

// values are the parameters of a manifest.
type values struct{ Run, Name, UID, Hostname string }

// apply creates the objects of the manifest. They belong to the namespace of the run, so that they are deleted with it.
func (t *trial) apply(ctx context.Context, file string, v values) {
	v.Run = t.ns.Name
	parsed, err := template.ParseFS(manifests, "objects/"+file)
	t.must(err)
	var text bytes.Buffer
	t.must(parsed.Execute(&text, v))
	for document := range strings.SplitSeq(text.String(), "\n---\n") {
		object := &unstructured.Unstructured{}
		t.must(yaml.Unmarshal([]byte(document), &object.Object))
		labels := t.labels()
		maps.Copy(labels, object.GetLabels())
		object.SetLabels(labels)
		object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Namespace", Name: t.ns.Name, UID: t.ns.UID, BlockOwnerDeletion: new(true)}})
		resource, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
		if _, err := t.dynamic.Resource(resource).Namespace(object.GetNamespace()).Create(ctx, object, metav1.CreateOptions{}); err != nil {
			t.end(fmt.Errorf("creating %s %s: %w", object.GetKind(), object.GetName(), err))
		}
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

func label(key, value string) podOption {
	return func(pod *corev1.Pod) { pod.Labels[key] = value }
}

// onNode pins the pod to a node.
func onNode(n corev1.Node) podOption {
	return func(pod *corev1.Pod) {
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: n.Labels[corev1.LabelHostname]}
	}
}

// onNodes limits the pod to the nodes. Of these, it prefers those without a pod with the label.
func onNodes(nodes []corev1.Node, avoid map[string]string) podOption {
	var hostnames []string
	for _, n := range nodes {
		hostnames = append(hostnames, n.Labels[corev1.LabelHostname])
	}
	return func(pod *corev1.Pod) {
		pod.Spec.Affinity = &corev1.Affinity{
			NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: hostnames},
				}}},
			}},
			PodAntiAffinity: &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{
				Weight:          100,
				PodAffinityTerm: corev1.PodAffinityTerm{LabelSelector: &metav1.LabelSelector{MatchLabels: avoid}, TopologyKey: corev1.LabelHostname},
			}}},
		}
	}
}

// usesClaim adds the claim to the pod.
func usesClaim(name string) podOption {
	return func(pod *corev1.Pod) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}})
	}
}
