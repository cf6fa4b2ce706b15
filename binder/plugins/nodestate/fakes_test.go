// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

const (
	domain  = "prebind.dev"
	maxWait = time.Minute
)

// all are all the checks.
var all = Checks{Ready: true, Schedulable: true, Taints: true, Affinity: true}

// world is an API server in memory that has thePod and one node at most, or a cache. It
// counts the reads of the node.
type world struct {
	mu    sync.Mutex
	node  *corev1.Node
	reads int
	// err, when it is set, is the answer to every read.
	err error
	// afterRead, when it is set, is called after every read.
	afterRead func()
	hub       *framework.Hub
}

func newWorld(node *corev1.Node) *world { return &world{node: node, hub: framework.NewHub()} }

func (w *world) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if w.afterRead != nil {
		defer w.afterRead()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if pod, ok := into.(*corev1.Pod); ok {
		*pod = *thePod()
		return nil
	}
	node, ok := into.(*corev1.Node)
	w.reads++
	switch {
	case w.err != nil:
		return w.err
	case !ok:
		return fmt.Errorf("a %T is read, only nodes should be", into)
	case w.node == nil || w.node.Name != key.Name:
		return apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, key.Name)
	}
	*node = *w.node
	return nil
}

// List implements client.Reader.
func (*world) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("unexpected list")
}

// put stores the node, or removes it for nil, and tells nobody.
func (w *world) put(node *corev1.Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.node = node
}

// fail makes every read fail.
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

// The node is as it has to be for the pod.
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

// tolerating is a pod with these tolerations.
func tolerating(tolerations ...corev1.Toleration) *corev1.Pod {
	pod := thePod()
	pod.Spec.Tolerations = tolerations
	return pod
}

// wanting is a pod with a required node affinity.
func wanting(terms ...corev1.NodeSelectorTerm) *corev1.Pod {
	pod := thePod()
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
	}}
	return pod
}

// term is a term of expressions.
func term(expressions ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchExpressions: expressions}
}

func expression(key string, operator corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: operator, Values: values}
}

// named is a term that only the nodes of all these names match.
func named(names ...string) corev1.NodeSelectorTerm {
	var t corev1.NodeSelectorTerm
	for _, name := range names {
		t.MatchFields = append(t.MatchFields, expression("metadata.name", corev1.NodeSelectorOpIn, name))
	}
	return t
}

// annotation is one of the plugin's own.
func annotation(key, value string) gen.Meta { return gen.Annotation(Name+"."+domain+"/"+key, value) }

func contextFor(pod *corev1.Pod, node *corev1.Node, options ...gen.BindingOption) *framework.BindContext {
	now := time.Now()
	return &framework.BindContext{Pod: pod, Node: node, Binding: gen.Binding(pod, node.Name, options...), Now: now, Since: now}
}
