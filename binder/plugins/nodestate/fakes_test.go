// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/plugintest"
)

const (
	domain  = "prebind.dev"
	maxWait = time.Minute
)

// all enables all checks.
var all = Checks{Ready: true, Schedulable: true, Taints: true, Affinity: true}

// world is an API server or a cache with thePod and at most one node. It counts the reads of the
// node.
type world struct {
	*fakeapi.Connection
	server *fakeapi.Server
	hub    *framework.Hub

	mu    sync.Mutex
	reads int
	// err, if set, is the error of every read of the node.
	err error
	// afterRead, if set, is called after every read.
	afterRead func()
}

func newWorld(node *corev1.Node) *world {
	w := &world{server: fakeapi.New(thePod()), hub: framework.NewHub()}
	w.put(node)
	w.Connection = w.server.Connect()
	w.Before, w.After = w.before, w.after
	return w
}

func (w *world) before(call fakeapi.Call) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch call.String() {
	case "get Pod web":
		return nil
	case "get Node " + call.Key.Name:
		w.reads++
		return w.err
	default:
		return fmt.Errorf("unexpected call: %s", call)
	}
}

func (w *world) after(fakeapi.Call) error {
	if w.afterRead != nil {
		w.afterRead()
	}
	return nil
}

// put stores the node, or removes it if nil, without an event.
func (w *world) put(node *corev1.Node) {
	if node == nil {
		w.server.Remove(theNode())
		return
	}
	w.server.Put(node)
}

// fail makes every read of the node fail.
func (w *world) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

func (w *world) tell() { w.hub.Changed(framework.RefTo(&corev1.Node{}, "", "node-a")) }

func (w *world) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.reads
}

func pluginBetween(t testing.TB, cached, live *world) *Plugin {
	t.Helper()
	h := framework.Handle{Cached: cached, Live: live, Changes: cached.hub, Clock: clock.RealClock{}}
	p, err := New(h, &Arguments{Checks: CheckNames(), MaxWait: maxWait})
	require.NoError(t, err)
	return p
}

// The node passes all checks for the pod.
func thePod(options ...gen.PodOption) *corev1.Pod {
	return gen.Pod("web", append([]gen.PodOption{gen.UID("pod-1")}, options...)...)
}

func theNode(changes ...func(*corev1.Node)) *corev1.Node {
	node := gen.Node("node-a", gen.UID("node-1"), gen.Ready(10))
	for _, change := range changes {
		change(node)
	}
	return node
}

func uid(uid types.UID) func(*corev1.Node) {
	return func(node *corev1.Node) { gen.UID(uid)(&node.ObjectMeta) }
}

func terminating(node *corev1.Node) { gen.Terminating()(&node.ObjectMeta) }

func label(key, value string) func(*corev1.Node) {
	return func(node *corev1.Node) { gen.Label(key, value)(&node.ObjectMeta) }
}

func cordoned(node *corev1.Node) { node.Spec.Unschedulable = true }

func taint(key, value string, effect corev1.TaintEffect) func(*corev1.Node) {
	return func(node *corev1.Node) {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Value: value, Effect: effect})
	}
}

// reports sets a condition.
func reports(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason string) func(*corev1.Node) {
	return func(node *corev1.Node) {
		if c := conditionOf(node, kind); c != nil {
			c.Status, c.Reason = status, reason
			return
		}
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: kind, Status: status, Reason: reason})
	}
}

func reportsNothing(node *corev1.Node) { node.Status.Conditions = nil }

// tolerating returns a pod with these tolerations.
func tolerating(tolerations ...corev1.Toleration) *corev1.Pod {
	pod := thePod()
	pod.Spec.Tolerations = tolerations
	return pod
}

// wanting returns a pod with a required node affinity.
func wanting(terms ...corev1.NodeSelectorTerm) *corev1.Pod {
	pod := thePod()
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
	}}
	return pod
}

// term returns a term with these expressions.
func term(expressions ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchExpressions: expressions}
}

func expression(key string, operator corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: operator, Values: values}
}

// named returns a term with a requirement for each name of a node.
func named(names ...string) corev1.NodeSelectorTerm {
	var t corev1.NodeSelectorTerm
	for _, name := range names {
		t.MatchFields = append(t.MatchFields, expression("metadata.name", corev1.NodeSelectorOpIn, name))
	}
	return t
}

// annotation sets an annotation of the plugin.
func annotation(key, value string) gen.Meta { return gen.Annotation(Name+"."+domain+"/"+key, value) }

func contextFor(pod *corev1.Pod, node *corev1.Node, options ...gen.BindingOption) *framework.BindContext {
	return plugintest.Bind(pod, node, options...)
}
