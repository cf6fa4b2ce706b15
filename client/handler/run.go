// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package handler

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

// resource is that of BindTasks.
var resource = schema.GroupVersionResource{Group: "policy.prebind.dev", Version: "v1alpha1", Resource: "bindtasks"}

// Conditions of a BindTask.
const (
	typeReady  = "Ready"
	typeFailed = "Failed"
)

// Delays after errors.
const (
	firstDelay = 100 * time.Millisecond
	maxDelay   = 10 * time.Second
)

// Run handles the BindTasks of the handler until ctx ends, and then returns nil when the last call has returned. ctx is also that of the
// calls, and errors are logged with its logger (klog.FromContext). Run does not limit the rate of its requests, unless the configuration
// has a QPS.
func Run(ctx context.Context, config *rest.Config, h Handler) error {
	config = rest.CopyConfig(config)
	config.QPS = cmp.Or(config.QPS, -1)
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("handler %s: %w", h.Name, err)
	}
	return run(ctx, client, h)
}

type runner struct {
	Handler
	tasks dynamic.ResourceInterface
	cache cache.Store
	queue workqueue.RateLimitingInterface
}

func run(ctx context.Context, client dynamic.Interface, h Handler) error {
	if h.Name == "" || h.Do == nil || h.Workers < 0 {
		return errors.New("handler: Name and Do are required, and Workers is not negative")
	}
	informer := dynamicinformer.NewFilteredDynamicInformer(client, resource, "", 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.handler", h.Name).String()
		if o.ResourceVersion == "0" {
			o.ResourceVersion = "" // A cache of the API server can be behind: a BindTask that another process has undone would be done again.
		}
	}).Informer()
	r := &runner{
		Handler: h, tasks: client.Resource(resource), cache: informer.GetStore(),
		queue: workqueue.NewRateLimitingQueue(workqueue.NewItemExponentialFailureRateLimiter(firstDelay, maxDelay)),
	}
	if err := informer.SetTransform(func(o any) (any, error) {
		if task, ok := o.(*unstructured.Unstructured); ok {
			task.SetManagedFields(nil)
		}
		return o, nil
	}); err != nil {
		return fmt.Errorf("handler %s: %w", h.Name, err)
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: r.added, UpdateFunc: r.updated}); err != nil {
		return fmt.Errorf("handler %s: %w", h.Name, err)
	}
	var running wait.Group
	running.StartWithChannel(ctx.Done(), informer.Run)
	for range cmp.Or(h.Workers, 8) {
		running.StartWithContext(ctx, r.work)
	}
	<-ctx.Done()
	r.queue.ShutDown()
	running.Wait()
	return nil
}

func (r *runner) added(created any) {
	if task, ok := created.(*unstructured.Unstructured); ok {
		r.queue.Add(task.GetName())
	}
}

// updated ignores the handler's own writes, so that Do is not called earlier than it asked for. A task with another UID was created again,
// but the watch missed the deletion.
func (r *runner) updated(before, after any) {
	old, ok := before.(*unstructured.Unstructured)
	task, isTask := after.(*unstructured.Unstructured)
	if ok && isTask && (task.GetDeletionTimestamp() != nil || task.GetUID() != old.GetUID()) {
		r.queue.Add(task.GetName())
	}
}

// work handles tasks of the queue. The queue returns each task to one worker at a time.
func (r *runner) work(ctx context.Context) {
	for ctx.Err() == nil {
		key, shutdown := r.queue.Get()
		if shutdown {
			return
		}
		name, _ := key.(string)
		again, err := r.handle(ctx, name)
		switch {
		case err != nil:
			// After a conflict, the cache is behind.
			if ctx.Err() == nil && !apierrors.IsConflict(err) {
				klog.FromContext(ctx).Error(err, "BindTask is tried again", "handler", r.Name, "task", name)
			}
			r.queue.AddRateLimited(key)
		case again > 0:
			r.queue.Forget(key)
			r.queue.AddAfter(key, again)
		default:
			r.queue.Forget(key)
		}
		r.queue.Done(key)
	}
}

// handle brings the task closer to its result. It returns the time until it must be called again, or 0.
func (r *runner) handle(ctx context.Context, name string) (time.Duration, error) {
	cached, exists, err := r.cache.GetByKey(name)
	if err != nil || !exists {
		return 0, err
	}
	o, err := decode(cached)
	if err != nil {
		return 0, err
	}
	switch finalizer := slices.Index(o.Finalizers, r.Name); {
	case o.DeletionTimestamp != nil && finalizer < 0:
		return 0, nil
	case o.DeletionTimestamp != nil:
		if r.Undo != nil {
			if err := r.Undo(ctx, &o.Spec); err != nil {
				return 0, err
			}
		}
		_, err := r.setFinalizers(ctx, o, slices.Delete(o.Finalizers, finalizer, finalizer+1))
		return 0, err
	case meta.IsStatusConditionTrue(o.Status.Conditions, typeReady), meta.IsStatusConditionTrue(o.Status.Conditions, typeFailed):
		return 0, nil
	case r.Undo != nil && finalizer < 0:
		if o, err = r.setFinalizers(ctx, o, append(o.Finalizers, r.Name)); err != nil {
			return 0, err
		}
	}
	result, err := r.Do(ctx, &o.Spec)
	if err != nil || !meta.SetStatusCondition(&o.Status.Conditions, result.condition) {
		return result.again, err
	}
	o.Status.Annotations = result.annotations
	_, err = r.patch(ctx, o, map[string]any{"metadata": map[string]any{"resourceVersion": o.ResourceVersion}, "status": o.Status}, "status")
	return result.again, err
}

func (r *runner) setFinalizers(ctx context.Context, o *object, finalizers []string) (*object, error) {
	return r.patch(ctx, o, map[string]any{"metadata": map[string]any{"resourceVersion": o.ResourceVersion, "finalizers": finalizers}})
}

// patch returns the new version of the BindTask.
func (r *runner) patch(ctx context.Context, o *object, change map[string]any, subresources ...string) (*object, error) {
	data, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}
	patched, err := r.tasks.Patch(ctx, o.Name, types.MergePatchType, data, metav1.PatchOptions{}, subresources...)
	if err != nil {
		return nil, err
	}
	return decode(patched)
}

// object is a BindTask.
type object struct {
	metav1.ObjectMeta `json:"metadata"`

	Spec   Task `json:"spec"`
	Status struct {
		Conditions  []metav1.Condition `json:"conditions,omitempty"`
		Annotations map[string]string  `json:"annotations,omitempty"`
	} `json:"status"`
}

func decode(from any) (*object, error) {
	u, ok := from.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("unexpected type %T", from)
	}
	o := &object{}
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, o)
	o.Spec.Name, o.Spec.UID, o.Spec.Annotations = o.Name, o.UID, o.Status.Annotations
	return o, err
}
