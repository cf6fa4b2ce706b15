// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/internal/notify"
	"github.com/prebind/prebind/internal/volumes"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

// world is an API server with a cache that follows it. The cache holds the objects after the
// transforms.
type world struct {
	*fakeapi.Connection
	server, cache *fakeapi.Server
	cached        framework.Reader
	hub           *notify.Hub
	free          *FreeVolumes

	mu sync.Mutex
	// patches contains all patch requests, except for the checks, which are dry runs. applied is the
	// number of those that succeeded.
	patches []patched
	applied int
	checks  []string
	// fail, if set, can return an error for a request that writes the object with the name, or
	// that lists pods.
	fail func(name string) error
	// late contains the changes that the cache lacks, if it is lagging.
	lagging bool
	late    []func()
}

// maxResponse is the maximum size of a page of pods, and largestPod that of a pod, which the API server limits.
const maxResponse, largestPod = 32 << 20, 3 << 19

// patched is a patch request.
type patched struct{ kind, name, body string }

func newWorld(objects ...client.Object) *world {
	w := &world{server: fakeapi.New(), cache: fakeapi.New(), hub: notify.NewHub(), free: NewFreeVolumes()}
	w.server.PageSize(2)
	w.server.OnChange(w.changed)
	w.Connection, w.cached = w.server.Connect(), w.cache.Cache()
	w.Before, w.After = w.before, w.after
	for _, o := range objects {
		w.put(o)
	}
	return w
}

// changed updates the cache, the hub, and the index of free volumes.
func (w *world) changed(o client.Object, deleted bool) {
	apply := func() {
		_, volume := o.(*corev1.PersistentVolume)
		if seen, err := trimmed(o); deleted || err != nil || seen == nil {
			w.cache.Remove(o)
		} else {
			w.cache.Put(seen)
		}
		w.hub.Wake(o)
		switch {
		case volume && deleted:
			w.free.OnDelete(o)
		case volume:
			w.free.OnUpdate(nil, o)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lagging {
		w.late = append(w.late, apply)
		return
	}
	apply()
}

// lag stops the cache, and catchUp makes it follow again.
func (w *world) lag() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lagging = true
}

func (w *world) catchUp() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lagging = false
	for _, apply := range w.late {
		apply()
	}
	w.late = nil
}

// before counts a call, and returns the error that the test has set.
func (w *world) before(call fakeapi.Call) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	name := call.Key.Name
	switch {
	case call.Verb == "get":
		return nil
	case call.Verb == "patch" && call.DryRun:
		w.checks = append(w.checks, name)
	case call.Verb == "patch":
		w.patches = append(w.patches, patched{kind: call.Kind, name: name, body: call.Patch})
	case call.Kind == "PodList":
		if limit := call.List.Limit; limit == 0 || limit > maxResponse/largestPod {
			return errors.New("lists of pods must be limited to small pages")
		}
		name = "pods"
	}
	if w.fail != nil {
		return w.fail(name)
	}
	return nil
}

// after counts the patches.
func (w *world) after(call fakeapi.Call) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if call.Verb == "patch" && !call.DryRun {
		w.applied++
	}
	return nil
}

// trimmed returns the object as a reader of the cache gets it.
func trimmed(o client.Object) (client.Object, error) {
	for _, s := range []framework.Selection{volumes.Claims, volumes.Volumes, volumes.CSINodes} {
		if reflect.TypeOf(s.Example) != reflect.TypeOf(o) {
			continue
		}
		out, err := s.Transform(o.DeepCopyObject())
		object, ok := out.(client.Object)
		if !ok {
			return nil, fmt.Errorf("a %T is not an object", out)
		}
		return object, err
	}
	return o, nil
}

// put stores an object, as another client.
func (w *world) put(o client.Object) { w.server.Put(o) }

// pluginIn returns a plugin with the world as its API server.
func pluginIn(w *world) *Plugin {
	return New(framework.Handle{
		Cached: w.cached, Live: w, Writer: w, Wake: w.hub.Wake, Clock: clock.RealClock{}, Namespace: "prebind-system",
	}, w.free)
}

// pass runs Setup and PreFlight like the engine.
func (p *Plugin) pass(ctx context.Context, bc *framework.BindContext) (framework.Verdict, error) {
	if err := p.SetupBindContextExtension(ctx, p.h.Cached, bc); err != nil {
		return framework.Verdict{}, err
	}
	return p.PreFlight(bc)
}

// planned returns the plan of the last pass.
func planned(t *testing.T, bc *framework.BindContext) plan {
	t.Helper()
	pl, err := framework.Extension[plan](bc)
	require.NoError(t, err)
	return pl
}

// refuse is the kind of a rejection.
const refuse = framework.KindRefuse

// newReplica returns a replica of Prebind with the plugin.
func newReplica(t *testing.T, w *world) *frameworktest.Cluster {
	t.Helper()
	p := pluginIn(w)
	r := frameworktest.Around(t, w.server, w.hub, p.h, p)
	r.Hold, r.Budget = 8*time.Second, 10*time.Minute
	return r
}

// start posts a Binding to node-a once, in the background. The result comes when the call is decided, or has been held for long enough.
func start(t *testing.T, r *frameworktest.Cluster, pod *corev1.Pod) <-chan binder.Decision {
	t.Helper()
	outcome := make(chan binder.Decision, 1)
	go func() { outcome <- r.Post(t.Context(), pod, "node-a") }()
	return outcome
}

// Most tests use these objects: the pod web uses the claim data of the class local, and node-a is
// in zone z1.
func thePod(options ...gen.PodOption) *corev1.Pod {
	return gen.Pod("web", append([]gen.PodOption{gen.UID("pod-1"), gen.UsesClaim("data")}, options...)...)
}

func theNode(options ...gen.NodeOption) *corev1.Node {
	return gen.Node("node-a", append([]gen.NodeOption{gen.Zone("z1")}, options...)...)
}

func theClaim(options ...gen.ClaimOption) *corev1.PersistentVolumeClaim {
	return claimNamed("data", options...)
}

func claimNamed(name string, options ...gen.ClaimOption) *corev1.PersistentVolumeClaim {
	return gen.Claim(name, append([]gen.ClaimOption{gen.UID(types.UID("claim-" + name)), gen.Version("10"), gen.OfClass("local")}, options...)...)
}

func volumeNamed(name string, options ...gen.VolumeOption) *corev1.PersistentVolume {
	return gen.Volume(name, append([]gen.VolumeOption{gen.UID(types.UID("volume-" + name)), gen.Version("20"), gen.VolumeOfClass("local")}, options...)...)
}

func contextFor(pod *corev1.Pod) *framework.BindContext {
	return onNode(pod, theNode())
}

// onNode returns the context of a bind of the pod to the node.
func onNode(pod *corev1.Pod, node *corev1.Node) *framework.BindContext {
	return &framework.BindContext{Pod: pod, Node: node, Binding: gen.Binding(pod, node.Name), Attempt: "r-1"}
}
