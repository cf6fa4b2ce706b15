// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apiclient provides the clients for the API server, with a time limit for every
// request. It also follows which users the API server exempts from concurrency limits.
package apiclient

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// answerTakes is the time limit of a request that is not a watch. The API server ends every request except watches after 60 s.
const answerTakes = 70 * time.Second

// startTakes is the time limit for the first answer. The startupProbe of the manifests permits 60 s.
const startTakes = 50 * time.Second

// pings are the times of HTTP/2 in seconds after which a connection to an API server that is frozen or cut off is closed. With the defaults
// of apimachinery (30 and 15 s), a replica would lose its lease, although other API servers answer.
var pings = map[string]int{"HTTP2_READ_IDLE_TIMEOUT_SECONDS": 10, "HTTP2_PING_TIMEOUT_SECONDS": 5}

// Connect returns the client configuration of the kubeconfig or, if it is empty, of the service account of the pod, and a client with a time
// limit for small requests. It waits until the API server answers, for which it needs no permissions, but not longer than startTakes or the
// context: after an outage, the backoff of restarts would make Prebind the last to come back.
//
// The timeout of the configuration would end watches. Responses are not compressed: inside a cluster, the processors of both sides cost more
// than the bytes, above all for watches.
func Connect(ctx context.Context, kubeconfig, userAgent string, takes time.Duration) (*rest.Config, kubernetes.Interface, error) {
	var config *rest.Config
	var err error
	if kubeconfig == "" {
		if config, err = rest.InClusterConfig(); err != nil {
			return nil, nil, fmt.Errorf("--kubeconfig: required outside a pod: %w", err)
		}
	} else if config, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
		return nil, nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	config.UserAgent = userAgent
	config.Timeout = answerTakes // Some callers, such as the event recorder of client-go, would wait forever.
	config.QPS = -1              // API priority and fairness limits requests.
	config.DisableCompression = true
	for name, seconds := range pings {
		if os.Getenv(name) != "" {
			continue
		}
		if err := os.Setenv(name, strconv.Itoa(seconds)); err != nil {
			return nil, nil, fmt.Errorf("setting up a client: %w", err)
		}
	}
	soon := rest.CopyConfig(config)
	soon.Timeout = takes
	client, err := kubernetes.NewForConfig(soon)
	if err != nil {
		return nil, nil, fmt.Errorf("setting up a client: %w", err)
	}
	var unanswered error
	err = wait.PollUntilContextTimeout(ctx, time.Second, startTakes, true, func(context.Context) (bool, error) {
		before := unanswered
		if _, unanswered = client.Discovery().ServerVersion(); unanswered != nil && before == nil {
			klog.ErrorS(unanswered, "The API server does not answer, trying again", "server", config.Host)
		}
		return unanswered == nil, nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("the API server at %s does not answer: %w", config.Host, cmp.Or(unanswered, err))
	}
	return config, client, nil
}
