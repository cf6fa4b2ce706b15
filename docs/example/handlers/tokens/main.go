// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command tokens is an example of a handler: it limits the pods in the cluster that use a pool, such as a license. The parameter pool is its
// name. A pod gets a token before it is bound. The BindTask holds it: with retain WhilePodRuns, the token is free again when the pod has
// ended.
//
// A pool is a ConfigMap tokens-POOL with the UIDs of the BindTasks that hold its tokens. You create it: users must not add pools. Every write is a
// compare-and-swap, so a crash at any time never leads to more tokens than --limit. If you remove the finalizer of a BindTask by force, also remove its UID.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"maps"
	"os"
	"os/signal"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"

	"github.com/prebind/prebind/client/handler"
)

const name = "example.com/tokens"

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	kubeconfig := flag.String("kubeconfig", "", "Path to a kubeconfig file. Empty means the ServiceAccount of the pod.")
	namespace := flag.String("namespace", "bind-handlers", "Namespace of the ConfigMaps.")
	limit := flag.Int("limit", 1, "Number of tokens of each pool.")
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
	t := &tokens{pools: client.CoreV1().ConfigMaps(*namespace), limit: *limit}
	// One worker, because calls at the same time would only conflict.
	return handler.Run(ctx, config, handler.Handler{Name: name, Do: t.take, Undo: t.release, Workers: 1})
}

type tokens struct {
	pools typedcorev1.ConfigMapInterface
	limit int
}

// take gives the task a token, unless it holds one.
func (t *tokens) take(ctx context.Context, task *handler.Task) (handler.Result, error) {
	holds := false
	err := t.change(ctx, task, func(holders map[string]string) {
		_, holds = holders[string(task.UID)]
		if !holds && len(holders) < t.limit {
			// The value is for people.
			holders[string(task.UID)], holds = task.Pod.Namespace+"_"+task.Pod.Name, true
		}
	})
	if apierrors.IsNotFound(err) {
		return handler.Failed("InvalidPool", fmt.Sprintf("the pool %s does not exist", task.Parameters["pool"])), nil
	}
	if err == nil && !holds {
		return handler.Waiting(fmt.Sprintf("one of the %d tokens of pool %s", t.limit, task.Parameters["pool"]), time.Second), nil
	}
	return handler.Ready(nil), err
}

// release takes the token back, if the task holds one.
func (t *tokens) release(ctx context.Context, task *handler.Task) error {
	err := t.change(ctx, task, func(holders map[string]string) { delete(holders, string(task.UID)) })
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// change changes the holders of the pool. It repeats the change if another client was faster.
func (t *tokens) change(ctx context.Context, task *handler.Task, change func(holders map[string]string)) error {
	poolName := "tokens-" + task.Parameters["pool"]
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		pool, err := t.pools.Get(ctx, poolName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		before := pool.Data
		pool.Data = map[string]string{}
		maps.Copy(pool.Data, before)
		if change(pool.Data); maps.Equal(before, pool.Data) {
			return nil
		}
		// It fails if the ConfigMap has another resource version now.
		_, err = t.pools.Update(ctx, pool, metav1.UpdateOptions{})
		return err
	})
}
