// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/prebind/prebind/test/cluster"
)

// ownAnnotation is an annotation that smallScheduler sets on every Binding.
const ownAnnotation = "example.com/bound-by"

// smallScheduler is a scheduler that supports only node selectors and node affinity. It posts a Binding in a goroutine per pod, and
// knows Prebind only from docs/for-schedulers.md.
type smallScheduler struct {
	client kubernetes.Interface
	name   string
	// wrong makes it violate the contract: it omits the UID of the pod and its own annotation, and drops a pod after a rejection.
	wrong   bool
	working sync.WaitGroup
}

// lacksDriver returns whether the pod has a volume whose driver the node lacks. Some schedulers then do not use the node.
func (s *smallScheduler) lacksDriver(ctx context.Context, pod *corev1.Pod, node string) bool {
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		claim, err := s.client.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, v.PersistentVolumeClaim.ClaimName, metav1.GetOptions{})
		if err != nil || claim.Spec.StorageClassName == nil {
			return true
		}
		class, err := s.client.StorageV1().StorageClasses().Get(ctx, *claim.Spec.StorageClassName, metav1.GetOptions{})
		if err != nil {
			return true
		}
		csiNode, err := s.client.StorageV1().CSINodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil || !slices.ContainsFunc(csiNode.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == class.Provisioner }) {
			return true
		}
	}
	return false
}

// startScheduler starts the scheduler until the end of the test.
func startScheduler(t *testing.T, w *world, name string, wrong bool) {
	t.Helper()
	takeTurn(t)
	s := &smallScheduler{client: w.client, name: name, wrong: wrong}
	ctx, cancel := context.WithCancel(t.Context())
	own := informers.NewSharedInformerFactoryWithOptions(w.client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.Set{"spec.schedulerName": name, "spec.nodeName": ""}.String()
	}))
	pods := own.Core().V1().Pods().Informer()
	schedule := func(object any) {
		if pod, ok := object.(*corev1.Pod); ok {
			s.working.Go(func() { s.schedule(ctx, pod) })
		}
	}
	_, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: schedule})
	require.NoError(t, err)
	own.Start(ctx.Done())
	t.Cleanup(func() {
		cancel()
		own.Shutdown()
		s.working.Wait()
	})
}

// schedule binds the pod. After a rejection it chooses a node again, with backoff.
func (s *smallScheduler) schedule(ctx context.Context, pod *corev1.Pod) {
	uid, last := pod.UID, ""
	for backoff := time.Second; ctx.Err() == nil; backoff = min(2*backoff, 8*time.Second) {
		now, err := s.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && (now.UID != uid || now.Spec.NodeName != "") {
			return
		}
		if err == nil {
			last = s.choose(ctx, now, last)
		}
		if err == nil && last != "" {
			err = s.bind(ctx, now, last)
		} else if err == nil {
			err = errNoNode
		}
		switch status := apierrors.APIStatus(nil); {
		case err == nil, apierrors.IsConflict(err), apierrors.IsNotFound(err):
			return
		case errors.As(err, &status) && status.Status().Code == http.StatusPreconditionFailed:
			return
		case s.wrong && !apierrors.IsTooManyRequests(err):
			return
		}
		_ = cluster.Pause(ctx, backoff)
	}
}

// errNoNode means that no node fits.
var errNoNode = errors.New("no node fits")

// choose returns a random node that the pod allows, and another one than the last if there is one.
func (s *smallScheduler) choose(ctx context.Context, pod *corev1.Pod, last string) string {
	nodes, err := s.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return last
	}
	var fitting []string
	for i := range nodes.Items {
		node := &nodes.Items[i]
		if len(node.Spec.Taints) > 0 {
			continue
		}
		if fits, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); fits && err == nil && node.Name != last && !s.lacksDriver(ctx, pod, node.Name) {
			fitting = append(fitting, node.Name)
		}
	}
	if len(fitting) == 0 {
		return last
	}
	return fitting[rand.IntN(len(fitting))]
}

// bind posts the Binding with the annotations of the pod, as some schedulers do. client-go repeats it on 429.
func (s *smallScheduler) bind(ctx context.Context, pod *corev1.Pod, node string) error {
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Annotations: labels.Merge(pod.Annotations, labels.Set{ownAnnotation: s.name})},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}
	if s.wrong {
		binding.UID, binding.Annotations = "", nil
	}
	return s.client.CoreV1().Pods(pod.Namespace).Bind(ctx, binding, metav1.CreateOptions{})
}
