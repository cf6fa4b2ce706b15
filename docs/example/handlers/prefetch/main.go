// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command prefetch is an example of a handler: it pulls the image in the parameter image to the node before the pod is bound. For each task,
// it creates a pod on the node, and waits until the kubelet has pulled the image. The pod of the task gets the annotation cache: hit if the
// node listed the image before, and miss if it was pulled.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/prebind/prebind/client/handler"
)

const (
	name     = "example.com/prefetch"
	appLabel = "app.kubernetes.io/name"
	app      = "prefetch"
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	kubeconfig := flag.String("kubeconfig", "", "Path to a kubeconfig file. Empty means the ServiceAccount of the pod.")
	namespace := flag.String("namespace", "bind-handlers", "Namespace of the pods that pull images.")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1 // The default is 5 requests per second. The API server has limits of its own.
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	p := &prefetch{nodes: client.CoreV1().Nodes(), pods: client.CoreV1().Pods(*namespace)}
	return handler.Run(ctx, config, handler.Handler{Name: name, Do: p.do, Undo: p.undo})
}

type prefetch struct {
	nodes typedcorev1.NodeInterface
	pods  typedcorev1.PodInterface
}

// podName contains the UID, because a task that is created again can have the same name while its earlier pod is being deleted.
func podName(task *handler.Task) string { return app + "-" + string(task.UID) }

func (p *prefetch) do(ctx context.Context, task *handler.Task) (handler.Result, error) {
	pod, err := p.pods.Get(ctx, podName(task), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return p.begin(ctx, task)
	}
	if err != nil {
		return handler.Result{}, err
	}
	if isPulled(pod) {
		// The pod has no more use, but counts for the node until it is deleted.
		return handler.Ready(map[string]string{"cache": "miss"}), p.undo(ctx, task)
	}
	return result(pod), nil
}

// begin creates the pod, unless the image is on the node. The kubelet limits the pulls at the same time.
func (p *prefetch) begin(ctx context.Context, task *handler.Task) (handler.Result, error) {
	image := task.Parameters["image"]
	if image == "" {
		return handler.Failed("InvalidImageName", "the parameter image is empty"), nil
	}
	node, err := p.nodes.Get(ctx, task.NodeName, metav1.GetOptions{})
	if err != nil {
		return handler.Result{}, err
	}
	// The list is not complete: by default it contains 50 images. The kubelet finds the others on its disk.
	if slices.ContainsFunc(node.Status.Images, func(i corev1.ContainerImage) bool { return slices.Contains(i.Names, image) }) {
		return handler.Ready(map[string]string{"cache": "hit"}), nil
	}
	pod, err := p.pods.Create(ctx, newPod(task, image), metav1.CreateOptions{})
	if apierrors.IsInvalid(err) {
		return handler.Failed("InvalidImageName", err.Error()), nil
	}
	if err != nil {
		return handler.Result{}, err
	}
	return result(pod), nil
}

// newPod returns a pod that runs on the node without a scheduler, whatever the taints of the node are. If the image lacks the command, the
// pod fails after the pull.
func newPod(task *handler.Task, image string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: podName(task), Labels: map[string]string{appLabel: app},
			OwnerReferences: []metav1.OwnerReference{task.OwnerReference()},
		},
		Spec: corev1.PodSpec{
			NodeName:                      task.NodeName,
			RestartPolicy:                 corev1.RestartPolicyNever,
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			TerminationGracePeriodSeconds: new(int64(1)),
			AutomountServiceAccountToken:  new(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), RunAsUser: new(int64(65534)),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "image", Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
				// Nothing in the image of a user may run here: it has no such program.
				Command: []string{"/" + string(task.UID)},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}

func container(pod *corev1.Pod) (status corev1.ContainerStatus, waiting corev1.ContainerStateWaiting) {
	if len(pod.Status.ContainerStatuses) > 0 {
		status = pod.Status.ContainerStatuses[0]
	}
	return status, ptr.Deref(status.State.Waiting, corev1.ContainerStateWaiting{})
}

// isPulled returns whether the node has the image. After the pull, containerd cannot start the container, and CRI-O cannot create it.
func isPulled(pod *corev1.Pod) bool {
	status, waiting := container(pod)
	return status.ImageID != "" || waiting.Reason == "CreateContainerError" || pod.Status.Phase == corev1.PodSucceeded
}

// result returns the result of the task while the node does not have the image. The kubelet repeats a pull that failed.
func result(pod *corev1.Pod) handler.Result {
	image := pod.Spec.Containers[0].Image
	_, waiting := container(pod)
	switch {
	case pod.Status.Phase == corev1.PodFailed:
		return handler.Failed("PodFailed", fmt.Sprintf("the pull of image %s failed: %s: %s", image, pod.Status.Reason, pod.Status.Message))
	case waiting.Reason == "InvalidImageName":
		return handler.Failed("InvalidImageName", fmt.Sprintf("image %s: %s", image, waiting.Message))
	default:
		return handler.Waiting(fmt.Sprintf("the pull of image %s: %s", image, cmp.Or(waiting.Reason, "Pending")), time.Second)
	}
}

// undo deletes the pod. The image stays on the node until the kubelet removes unused images.
func (p *prefetch) undo(ctx context.Context, task *handler.Task) error {
	err := p.pods.Delete(ctx, podName(task), metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
