// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// What the plugin may do, in Prebind's own namespace.
//
// +kubebuilder:rbac:groups="",resources=configmaps,namespace=prebind-system,verbs=get;list;watch;create;update;delete

const (
	recordPrefix = "prebind-devices-"
	// recordLabel and its value tell records from other ConfigMaps.
	recordLabel = "app.kubernetes.io/component"
	recordValue = "prebind-device-record"
)

// recordName is the name of the node's record. Names of nodes may be as long as
// those of ConfigMaps, so that a long one is cut, and told apart by a hash.
func recordName(node string) string {
	name := recordPrefix + node
	if len(name) <= validation.DNS1123SubdomainMaxLength {
		return name
	}
	sum := sha256.Sum256([]byte(node))
	end := "-" + hex.EncodeToString(sum[:8])
	return strings.TrimRight(name[:validation.DNS1123SubdomainMaxLength-len(end)], "-.") + end
}

// errLookAgain asks update for the record as the API server has it.
var errLookAgain = errors.New("the cache may be behind")

// store reads and writes records. It is safe for concurrent use.
type store struct {
	cached, live client.Reader
	writer       client.Writer
	namespace    string
	// grantOf is what a bound pod says itself that it was granted.
	grantOf func(pod *corev1.Pod) (grant, bool)
	turns   turns

	mu sync.Mutex
	// written holds, by node, what this replica has written last, until the cache
	// has caught up with it.
	written map[string]*corev1.ConfigMap
}

func newStore(cached, live client.Reader, writer client.Writer, namespace string, grantOf func(pod *corev1.Pod) (grant, bool)) *store {
	return &store{
		cached: cached, live: live, writer: writer, namespace: namespace, grantOf: grantOf,
		turns: turns{of: map[string]*turn{}}, written: map[string]*corev1.ConfigMap{},
	}
}

func (s *store) key(node string) client.ObjectKey {
	return client.ObjectKey{Namespace: s.namespace, Name: recordName(node)}
}

func (s *store) object(node string) framework.Object {
	return framework.Object{Kind: "ConfigMap", Namespace: s.namespace, Name: recordName(node)}
}

// known returns the newest record of the node that this replica knows without
// asking the API server.
func (s *store) known(ctx context.Context, node string) (*record, error) {
	object := &corev1.ConfigMap{}
	if err := s.cached.Get(ctx, s.key(node), object); apierrors.IsNotFound(err) {
		object = nil
	} else if err != nil {
		return nil, framework.FromAPI(s.object(node), "reading it from the cache", err)
	}
	s.mu.Lock()
	if own := s.written[node]; own != nil {
		if object == nil || newer(own, object) {
			object = own
		} else {
			delete(s.written, node)
		}
	}
	s.mu.Unlock()
	if object == nil {
		return &record{Node: node, Entries: map[types.UID]*entry{}}, nil
	}
	return decodeOf(node, object)
}

// newer says whether a is a later version than b, or cannot be told to be older.
func newer(a, b *corev1.ConfigMap) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return a.UID == b.UID && (err != nil || order > 0)
}

// read returns the record as the API server has it. Of a node that has none, it is
// made up from the pods that run there: it may be the first, or the record was
// lost, and their devices are theirs.
func (s *store) read(ctx context.Context, node string) (*record, error) {
	object := &corev1.ConfigMap{}
	err := s.live.Get(ctx, s.key(node), object)
	if err == nil {
		return decodeOf(node, object)
	}
	s.forget(node)
	if !apierrors.IsNotFound(err) {
		return nil, framework.FromAPI(s.object(node), "reading it", err)
	}
	return s.madeUp(ctx, node)
}

// madeUp is the record of a node that has none, by what its pods say.
func (s *store) madeUp(ctx context.Context, node string) (*record, error) {
	rec := &record{Node: node, Entries: map[types.UID]*entry{}}
	pods := &corev1.PodList{}
	if err := s.live.List(ctx, pods, onNode(node)); err != nil {
		return nil, framework.FromAPI(framework.Object{Kind: "Node", Name: node}, "listing its pods, to see which devices they hold", err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if g, ok := s.grantOf(pod); ok && where(pod, pod.UID, node) == bound {
			rec.Entries[pod.UID] = &entry{Pod: nameOf(pod), Bound: true, Grants: []grant{g}}
		}
	}
	return rec, nil
}

// onNode selects the pods on the node that are not finished.
func onNode(node string) client.ListOption {
	return client.MatchingFieldsSelector{Selector: fields.AndSelectors(
		fields.OneTermEqualSelector("spec.nodeName", node),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
	)}
}

func (s *store) forget(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.written, node)
}

// update changes the node's record. change is given the newest one that is known,
// and says whether it changed it; with errLookAgain it asks for the record as the
// API server has it. When somebody else has written meanwhile, it is called again.
// One update of a node runs at a time in this replica.
func (s *store) update(ctx context.Context, node string, change func(rec *record, live bool) (bool, error)) error {
	done, err := s.turns.take(ctx, node)
	if err != nil {
		return err
	}
	defer done()
	rec, err := s.known(ctx, node)
	live := false
	for err == nil {
		if err = context.Cause(ctx); err != nil {
			break
		}
		if rec.object == nil && !live {
			// Before the first write for a node.
			rec, err = s.read(ctx, node)
			live = true
			continue
		}
		var changed bool
		if changed, err = change(rec, live); err == nil && !changed {
			return nil
		}
		if err == nil {
			if err = s.write(ctx, rec); err == nil {
				return nil
			}
		}
		if errors.Is(err, errLookAgain) {
			rec, err = s.read(ctx, node)
			live = true
		}
	}
	return err
}

// write writes the record, on the condition that nobody has since it was read.
func (s *store) write(ctx context.Context, rec *record) error {
	data, err := rec.encode()
	if err != nil {
		return err
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: s.namespace, Name: recordName(rec.Node),
		Labels: map[string]string{recordLabel: recordValue, "app.kubernetes.io/managed-by": "prebind"},
	}}
	if rec.object == nil {
		object.Data = data
		err = s.writer.Create(ctx, object)
	} else {
		recordLabels := object.Labels
		object = rec.object.DeepCopy()
		object.Data = data
		// Without them no cache holds it.
		object.Labels = labels.Merge(object.Labels, recordLabels)
		err = s.writer.Update(ctx, object)
	}
	switch {
	case err == nil:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.written[rec.Node] = object
		return nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err) && rec.object != nil:
		s.forget(rec.Node)
		return errLookAgain
	default:
		s.forget(rec.Node)
		return framework.FromAPI(s.object(rec.Node), "recording who holds the devices of the node", err)
	}
}

// remove deletes a record that holds nothing, unless somebody has written it
// since.
func (s *store) remove(ctx context.Context, rec *record) error {
	done, err := s.turns.take(ctx, rec.Node)
	if err != nil {
		return err
	}
	defer done()
	s.forget(rec.Node)
	err = s.writer.Delete(ctx, rec.object.DeepCopy(), client.Preconditions{UID: &rec.object.UID, ResourceVersion: &rec.object.ResourceVersion})
	if apierrors.IsConflict(err) {
		return nil
	}
	return client.IgnoreNotFound(err)
}

// unconfirmed returns the records that may have marks, from the cache. Those that cannot be read
// are in the error. The cost depends on how many these are, not on how many records there are.
func (s *store) unconfirmed(ctx context.Context) ([]*record, error) {
	var objects corev1.ConfigMapList
	if err := s.cached.List(ctx, &objects, client.InNamespace(s.namespace), client.MatchingFields{unconfirmedIndex: unconfirmedKey}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	s.caughtUp(ctx)
	var records []*record
	var errs []error
	for i := range objects.Items {
		rec, err := decode(&objects.Items[i])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		records = append(records, rec)
	}
	return records, errors.Join(errs...)
}

// next returns up to n records from the cache, in the order of their names and in a circle: first
// those behind the name. They are not decoded, so one that cannot be read stands in no other's way.
func (s *store) next(ctx context.Context, behind string, n int) ([]*corev1.ConfigMap, error) {
	var objects corev1.ConfigMapList
	if err := s.cached.List(ctx, &objects, client.InNamespace(s.namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	var before, after []*corev1.ConfigMap
	for i := range objects.Items {
		if object := &objects.Items[i]; object.Name > behind {
			after = append(after, object)
		} else {
			before = append(before, object)
		}
	}
	byName := func(a, b *corev1.ConfigMap) int { return cmp.Compare(a.Name, b.Name) }
	slices.SortFunc(before, byName)
	slices.SortFunc(after, byName)
	after = append(after, before...)
	return after[:min(n, len(after))], nil
}

// caughtUp forgets what was written, where the cache has it. All replicas ask for their marks every
// few seconds; else a record would be kept twice until the next bind to its node, and for good where
// the node is gone.
func (s *store) caughtUp(ctx context.Context) {
	s.mu.Lock()
	written := maps.Clone(s.written)
	s.mu.Unlock()
	for node, own := range written {
		cached := &corev1.ConfigMap{}
		if err := s.cached.Get(ctx, s.key(node), cached); err != nil || newer(own, cached) {
			continue
		}
		s.mu.Lock()
		if s.written[node] == own {
			delete(s.written, node)
		}
		s.mu.Unlock()
	}
}

// running are the pods on the node that are not finished, as the API server has
// them now.
func (s *store) running(ctx context.Context, node string) (sets.Set[types.UID], error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	if err := s.live.List(ctx, list, onNode(node)); err != nil {
		return nil, fmt.Errorf("listing its pods: %w", err)
	}
	uids := sets.New[types.UID]()
	for i := range list.Items {
		uids.Insert(list.Items[i].UID)
	}
	return uids, nil
}

// turns lets one update of each node run at a time, so that the binds of one
// replica do not make each other start again.
type turns struct {
	mu sync.Mutex
	of map[string]*turn
}

type turn struct {
	taken chan struct{}
	users int
}

// take waits for the turn, or for the end of the context.
func (t *turns) take(ctx context.Context, node string) (done func(), err error) {
	t.mu.Lock()
	mine := t.of[node]
	if mine == nil {
		mine = &turn{taken: make(chan struct{}, 1)}
		t.of[node] = mine
	}
	mine.users++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if mine.users--; mine.users == 0 {
			delete(t.of, node)
		}
	}
	select {
	case mine.taken <- struct{}{}:
		return func() {
			<-mine.taken
			leave()
		}, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}
