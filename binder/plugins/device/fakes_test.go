// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/notify"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

const (
	namespace = "prebind-system"
	// gpu and lockIt are annotation keys.
	gpu    = "device.prebind.dev/gpu"
	fpga   = "device.prebind.dev/fpga"
	lockIt = "device.prebind.dev/node-lock"
)

// server is an API server that all replicas share. Its records wake the binds of replicas whose cache it is.
type server struct {
	*fakeapi.Connection
	t   *testing.T
	api *fakeapi.Server
	hub *notify.Hub
}

func newServer(t *testing.T, objects ...client.Object) *server {
	t.Helper()
	s := &server{t: t, api: fakeapi.New(objects...), hub: notify.NewHub()}
	s.api.OnChange(func(o client.Object, _ bool) {
		if _, record := o.(*corev1.ConfigMap); record {
			s.hub.Wake(o)
		}
	})
	s.Connection = s.api.Connect()
	return s
}

// bind binds a pod, as the API server does for an allowed Binding.
func (s *server) bind(bc *framework.BindContext) {
	s.t.Helper()
	s.change(bc.Pod, func(pod *corev1.Pod) {
		pod.Spec.NodeName = bc.Node.Name
		for key, value := range bc.Binding.Annotations {
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, key, value)
		}
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "binder.prebind.dev/attempt", bc.Attempt)
	})
}

// postBind calls PostBind as the engine does.
func (s *server) postBind(p *Plugin, bc *framework.BindContext) error {
	s.t.Helper()
	bound, _ := fakeapi.Get(s.api, bc.Pod)
	return p.PostBind(s.t.Context(), bc.Mark(), bound)
}

// bindAndConfirm binds a pod, and calls PostBind.
func (s *server) bindAndConfirm(p *Plugin, bc *framework.BindContext) {
	s.t.Helper()
	s.bind(bc)
	require.NoError(s.t, s.postBind(p, bc))
}

func (s *server) finish(pod *corev1.Pod) {
	s.t.Helper()
	s.change(pod, func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded })
}

func (s *server) change(pod *corev1.Pod, do func(pod *corev1.Pod)) {
	fakeapi.Change(s.api, pod, "", do)
}

func (s *server) delete(pod *corev1.Pod) {
	s.t.Helper()
	require.NoError(s.t, s.Delete(s.t.Context(), pod))
}

// record returns the record of node-a from the API server, or nil.
func (s *server) record() *record {
	s.t.Helper()
	object := s.object()
	if object == nil {
		return nil
	}
	rec, err := decodeObject("node-a", object)
	require.NoError(s.t, err)
	return rec
}

func (s *server) object() *corev1.ConfigMap {
	s.t.Helper()
	object := &corev1.ConfigMap{}
	err := s.Get(s.t.Context(), client.ObjectKey{Namespace: namespace, Name: recordName("node-a")}, object)
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(s.t, err)
	return object
}

// count returns the number of writes of records that took effect.
func (s *server) count() int {
	return len(slices.DeleteFunc(s.api.Writes(), func(c fakeapi.Call) bool { return c.Kind != "ConfigMap" }))
}

// lagging is a cache of the records as of its last sync.
type lagging struct {
	client.Reader
	server, cache *fakeapi.Server
	hub           *notify.Hub
}

func newLagging(s *server) *lagging {
	s.t.Helper()
	cache := fakeapi.New()
	return &lagging{Reader: cache.Cache(), server: s.api, cache: cache, hub: notify.NewHub()}
}

// sync updates the cache, and notifies waiting binds.
func (l *lagging) sync() {
	for _, record := range fakeapi.All(l.server, &corev1.ConfigMap{}) {
		l.cache.Put(record)
		l.hub.Wake(record)
	}
}

// follow makes the cache show all objects, and each change of an object after the delay. Call it before the server changes.
func (l *lagging) follow(delay time.Duration, objects ...client.Object) {
	for _, o := range objects {
		l.cache.Put(o)
	}
	l.server.OnChange(func(o client.Object, _ bool) {
		time.AfterFunc(delay, func() {
			l.cache.Put(o)
			l.hub.Wake(o)
		})
	})
}

// timeout is the lock timeout in tests.
const timeout = 2 * time.Minute

// replicaOf returns a plugin whose cache is the server.
func replicaOf(s *server) *Plugin { return pluginOn(s, s.api.Cache(), s.api.Connect(), s.hub) }

func pluginOn(s *server, cached client.Reader, conn *fakeapi.Connection, hub *notify.Hub) *Plugin {
	s.t.Helper()
	h := framework.Handle{Cached: cached, Live: conn, Writer: conn, Wake: hub.Wake, Clock: clock.RealClock{}, Namespace: namespace}
	return New(h, &Arguments{NodeLockTimeout: metav1.Duration{Duration: timeout}})
}

// podNamed returns a pod. Its UID is equal to its name.
func podNamed(name string, options ...gen.PodOption) *corev1.Pod {
	return gen.Pod(name, append([]gen.PodOption{gen.UID(types.UID(name))}, options...)...)
}

// bindOf returns the context of an attempt to bind the pod to node-a, with annotations of
// the Binding.
func bindOf(pod *corev1.Pod, attempt string, annotations ...gen.BindingOption) *framework.BindContext {
	return &framework.BindContext{Pod: pod, Node: gen.Node("node-a"), Binding: gen.Binding(pod, "node-a", annotations...), Attempt: attempt}
}

// decodeObject decodes the record of the node.
func decodeObject(node string, object *corev1.ConfigMap) (*record, error) {
	p := New(framework.Handle{Namespace: namespace}, &Arguments{NodeLockTimeout: metav1.Duration{Duration: timeout}})
	object.Namespace = namespace
	v, err := p.records.Get(context.Background(), fakeapi.New(object).Cache(), node)
	if err != nil {
		return nil, err
	}
	return v.Record, nil
}

// preFlight runs Setup and PreFlight as the engine does.
func preFlight(ctx context.Context, p *Plugin, bc *framework.BindContext) (framework.Verdict, error) {
	bc.Now = p.h.Clock.Now()
	if err := p.SetupBindContextExtension(ctx, p.h.Cached, bc); err != nil {
		return framework.Verdict{}, err
	}
	return p.PreFlight(bc)
}

// confirm returns an error unless the bind may proceed.
func confirm(ctx context.Context, p *Plugin, bc *framework.BindContext) error {
	v, err := preFlight(ctx, p, bc)
	if err == nil && (len(v.Writes) > 0 || v.Wait.For != "") {
		err = framework.NotYet(framework.ObjectOf(bc.Node), "not prepared")
	}
	return err
}

// prepare runs PreFlight and PreBind once, as the engine does.
func prepare(ctx context.Context, p *Plugin, bc *framework.BindContext) error {
	v, err := preFlight(ctx, p, bc)
	switch {
	case err != nil:
		return err
	case v.Wait.For != "":
		return framework.NotYet(v.Wait.Object, "%s", v.Wait.For)
	case len(v.Writes) > 0:
		return p.PreBind(ctx, bc)
	default:
		return nil
	}
}

// held returns the grants on node-a by pod.
func held(s *server) map[string]string {
	s.t.Helper()
	all := map[string]string{}
	rec := s.record()
	if rec == nil {
		return all
	}
	for uid, e := range rec.Entries {
		text := ""
		for _, g := range e.Grants {
			text += fmt.Sprintf("[%s: %s]", g.Attempt, g.Devices)
		}
		if e.Bound {
			text += " bound"
		}
		all[string(uid)] = text
	}
	return all
}
