// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// apiServer is an API server that serves the discovery of pods, nodes and gadgets, watches of pods, and watches and
// lists of gadgets. It ignores selectors and records them.
type apiServer struct {
	*httptest.Server
	mu      sync.Mutex
	watches []url.Values
	pods    chan *corev1.Pod
	// gadgets are those of the list, and the first events of a watch. added are later ones.
	gadgets []*unstructured.Unstructured
	added   chan *unstructured.Unstructured
	// installed means that gadgets are served. silent means that a watch of gadgets has no events.
	installed, silent atomic.Bool
	// forbidden means that the API server forbids lists and watches of gadgets.
	forbidden atomic.Bool
	// gadget is the resource of gadgets.
	gadget atomic.Pointer[metav1.APIResource]
}

// gadgetKind is the kind of a custom resource.
var gadgetKind = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Gadget"}

// newGadget returns a custom resource. An empty name is for an example.
func newGadget(namespace, name, rack string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(gadgetKind)
	o.SetNamespace(namespace)
	o.SetName(name)
	if rack != "" {
		o.SetLabels(map[string]string{"rack": rack})
		o.SetResourceVersion("1")
	}
	return o
}

func newServer(t *testing.T) *apiServer {
	t.Helper()
	s := &apiServer{pods: make(chan *corev1.Pod), added: make(chan *unstructured.Unstructured)}
	s.gadget.Store(&metav1.APIResource{Name: "gadgets", Kind: "Gadget", Namespaced: true})
	mux := http.NewServeMux()
	answer := func(path string, content func() any) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			found := content()
			if found == nil {
				http.NotFound(w, r)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(found)
		})
	}
	answer("/api", func() any {
		return metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}
	})
	answer("/apis", func() any {
		groups := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
		if version := (metav1.GroupVersionForDiscovery{GroupVersion: "example.com/v1", Version: "v1"}); s.installed.Load() {
			groups.Groups = []metav1.APIGroup{{Name: "example.com", Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version}}
		}
		return groups
	})
	resources := func(version string, list ...metav1.APIResource) any {
		return metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: version, APIResources: list}
	}
	answer("/api/v1", func() any {
		return resources("v1", metav1.APIResource{Name: "pods", Kind: "Pod", Namespaced: true}, metav1.APIResource{Name: "nodes", Kind: "Node"})
	})
	answer("/apis/example.com/v1", func() any {
		if !s.installed.Load() {
			return nil
		}
		return resources("example.com/v1", *s.gadget.Load())
	})
	mux.HandleFunc("GET /api/v1/namespaces/kube-system/pods", s.watchPods)
	mux.HandleFunc("GET /api/v1/pods", s.watchPods)
	mux.HandleFunc("GET /apis/example.com/v1/{resource}", s.gadgetsOf)
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.CloseClientConnections)
	return s
}

func (s *apiServer) config() *rest.Config {
	return &rest.Config{Host: s.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
}

// watched returns the queries of the watches.
func (s *apiServer) watched() []url.Values {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.watches)
}

// watchPods sends the end of the initial events, and then the pods of the channel.
func (s *apiServer) watchPods(w http.ResponseWriter, r *http.Request) {
	end := &corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}}
	end.ResourceVersion, end.Annotations = "1", map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	serveWatch(s, w, r, nil, end, s.pods)
}

// gadgetsOf answers a list or a watch.
func (s *apiServer) gadgetsOf(w http.ResponseWriter, r *http.Request) {
	switch {
	case !s.installed.Load() || r.PathValue("resource") != s.gadget.Load().Name:
		http.NotFound(w, r)
	case s.forbidden.Load():
		denied := apierrors.NewForbidden(schema.GroupResource{Group: "example.com", Resource: "gadgets"}, "", errors.New("no role")).Status()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(denied)
	case r.URL.Query().Get("watch") == "":
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": "example.com/v1", "kind": "GadgetList", "metadata": map[string]any{"resourceVersion": "1"}, "items": s.gadgets})
	case s.silent.Load():
		<-r.Context().Done()
	default:
		end := newGadget("", "", "")
		end.SetResourceVersion("1")
		end.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		serveWatch(s, w, r, s.gadgets, end, s.added)
	}
}

// serveWatch sends the first objects, the end of the initial events, and then the objects of the channel.
func serveWatch[T any](s *apiServer, w http.ResponseWriter, r *http.Request, first []T, end T, later <-chan T) {
	s.mu.Lock()
	s.watches = append(s.watches, r.URL.Query())
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	send := func(kind string, o T) bool {
		err := json.NewEncoder(w).Encode(map[string]any{"type": kind, "object": o})
		w.(http.Flusher).Flush() //nolint:forcetypeassert,errcheck // net/http implements it.
		return err == nil
	}
	for _, o := range first {
		send("ADDED", o)
	}
	for ok := send("BOOKMARK", end); ok; {
		select {
		case <-r.Context().Done():
			return
		case o := <-later:
			ok = send("ADDED", o)
		}
	}
}
