// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/ledger"
	"github.com/prebind/prebind/binder/notify"
	"github.com/prebind/prebind/test/gen"
)

// podsPerNode is the number of pods with devices on each node.
const podsPerNode = 8

// BenchmarkNodes measures the cost by number of nodes with a record. From 500 to 5,000
// nodes, no row may grow by more than 1.5 times.
func BenchmarkNodes(b *testing.B) {
	for _, nodes := range []int{500, 5000} {
		b.Run(fmt.Sprintf("Grant/nodes=%d", nodes), func(b *testing.B) {
			c := newCrowd(b, nodes, 0)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				c.bind(b, i%nodes, fmt.Sprintf("new-%d", i))
			}
		})
		b.Run(fmt.Sprintf("Sweep/nodes=%d", nodes), func(b *testing.B) {
			const unconfirmed = 20
			c := newCrowd(b, nodes, unconfirmed)
			b.ReportAllocs()
			for b.Loop() {
				marks, err := c.plugin.Marks(b.Context())
				require.NoError(b, err)
				require.Len(b, marks, unconfirmed)
			}
		})
		b.Run(fmt.Sprintf("Tidy/nodes=%d", nodes), func(b *testing.B) {
			c := newCrowd(b, nodes, 0)
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, c.plugin.Tidy(b.Context()))
			}
			b.ReportMetric(float64(c.podLists())/float64(b.N), "lists/op")
		})
	}
}

// crowd is an in-memory cluster whose cache is up to date. Like a cache, it does not copy
// what it returns.
type crowd struct {
	// Writer is nil: crowd implements the methods that the plugin calls.
	client.Writer
	plugin  *Plugin
	records cache.Indexer

	mu      sync.Mutex
	version int
	pods    map[types.NamespacedName]*corev1.Pod
	// looked contains the node of each list request for pods.
	looked []string
	// onList is called for each list request, if set.
	onList func()
}

// newCrowd returns a cluster with a record of podsPerNode bound pods for each node. The
// first records have a mark each.
func newCrowd(tb testing.TB, nodes, marks int) *crowd {
	tb.Helper()
	indexers := cache.Indexers{unconfirmedIndex: func(o any) ([]string, error) {
		object, ok := o.(client.Object)
		if !ok {
			return nil, fmt.Errorf("a %T is not an object", o)
		}
		return unconfirmed(object), nil
	}}
	c := &crowd{records: cache.NewIndexer(cache.MetaNamespaceKeyFunc, indexers), pods: map[types.NamespacedName]*corev1.Pod{}}
	for n := range nodes {
		rec := &record{Node: nodeNamed(n), Entries: map[types.UID]*entry{}}
		for i := range podsPerNode {
			pod := c.pod(n, fmt.Sprintf("pod-%d-%d", n, i))
			rec.grant(pod, fmt.Sprintf("attempt-%d-%d", n, i), devices{"gpu": {fmt.Sprintf("GPU-%d", i): whole}})
			rec.Entries[pod.UID].Bound = i > 0 || n >= marks
		}
		data, err := rec.Encode()
		require.NoError(tb, err)
		require.NoError(tb, c.Create(tb.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: recordName(rec.Node), Labels: map[string]string{ledger.Label: ledger.Devices}}, Data: data,
		}))
	}
	h := framework.Handle{Cached: c, Live: c, Writer: c, Wake: notify.NewHub().Wake, Clock: clock.RealClock{}, Namespace: namespace}
	c.plugin = New(h, &Arguments{NodeLockTimeout: metav1.Duration{Duration: timeout}})
	return c
}

func keyOf(node string) client.ObjectKey {
	return client.ObjectKey{Namespace: namespace, Name: recordName(node)}
}

func nodeNamed(n int) string { return "node-" + strconv.Itoa(n) }

// pod adds a running pod to the node.
func (c *crowd) pod(node int, name string) *corev1.Pod {
	pod := podNamed(name, gen.BoundTo(nodeNamed(node)))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pods[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}] = pod
	return pod
}

// bind binds a new pod with a device, and then removes the pod and its grant.
func (c *crowd) bind(tb testing.TB, node int, name string) {
	ctx := tb.Context()
	before := &corev1.ConfigMap{}
	require.NoError(tb, c.Get(ctx, keyOf(nodeNamed(node)), before))
	pod := podNamed(name)
	bc := &framework.BindContext{
		Pod: pod, Node: gen.Node(nodeNamed(node)), Binding: gen.Binding(pod, nodeNamed(node), gen.Annotation(gpu, "GPU-9")), Attempt: "attempt",
	}
	require.NoError(tb, prepare(ctx, c.plugin, bc))
	bound := c.pod(node, name)
	require.NoError(tb, c.plugin.PostBind(ctx, bc))
	c.mu.Lock()
	delete(c.pods, client.ObjectKeyFromObject(bound))
	c.mu.Unlock()
	require.NoError(tb, c.Update(ctx, before))
}

func (c *crowd) podLists() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.looked)
}

func (c *crowd) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch into := o.(type) {
	case *corev1.Pod:
		if pod := c.pods[key]; pod != nil {
			*into = *pod
			return nil
		}
		return apierrors.NewNotFound(corev1.Resource("pods"), key.Name)
	case *corev1.ConfigMap:
		found, ok, err := c.records.GetByKey(key.String())
		if object, is := found.(*corev1.ConfigMap); ok && is {
			*into = *object
			return nil
		}
		if err == nil {
			err = apierrors.NewNotFound(corev1.Resource("configmaps"), key.Name)
		}
		return err
	default:
		return fmt.Errorf("unexpected read of a %T", o)
	}
}

func (c *crowd) List(_ context.Context, o client.ObjectList, options ...client.ListOption) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	selector := (&client.ListOptions{}).ApplyOptions(options).FieldSelector
	switch into := o.(type) {
	case *metav1.PartialObjectMetadataList:
		node, _ := selector.RequiresExactMatch("spec.nodeName")
		c.looked = append(c.looked, node)
		if c.onList != nil {
			c.onList()
		}
		// The API server has an index by node name.
		n := 0
		if _, err := fmt.Sscanf(node, "node-%d", &n); err != nil {
			return err
		}
		for i := range podsPerNode {
			name := fmt.Sprintf("pod-%d-%d", n, i)
			if pod := c.pods[types.NamespacedName{Namespace: "default", Name: name}]; pod != nil {
				into.Items = append(into.Items, metav1.PartialObjectMetadata{ObjectMeta: pod.ObjectMeta})
			}
		}
		return nil
	case *corev1.ConfigMapList:
		objects := c.records.List()
		if selector != nil {
			var err error
			if objects, err = c.records.ByIndex(selector.Requirements()[0].Field, selector.Requirements()[0].Value); err != nil {
				return err
			}
		}
		for _, object := range objects {
			if record, ok := object.(*corev1.ConfigMap); ok {
				into.Items = append(into.Items, *record)
			}
		}
		return nil
	default:
		return fmt.Errorf("unexpected list of %T", o)
	}
}

func (c *crowd) Create(ctx context.Context, o client.Object, _ ...client.CreateOption) error {
	o.SetUID(types.UID("record of " + o.GetName()))
	return c.Update(ctx, o)
}

func (c *crowd) Update(_ context.Context, o client.Object, _ ...client.UpdateOption) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version++
	o.SetResourceVersion(strconv.Itoa(c.version))
	return c.records.Update(o.DeepCopyObject())
}

func (c *crowd) Delete(_ context.Context, o client.Object, _ ...client.DeleteOption) error {
	return c.records.Delete(o)
}
