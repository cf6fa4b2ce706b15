// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// apiServer is an API server that serves the discovery of pods and nodes, and watches of pods. It ignores
// selectors and records them.
type apiServer struct {
	*httptest.Server
	mu      sync.Mutex
	watches []url.Values
	pods    chan *corev1.Pod
}

func newServer(t *testing.T) *apiServer {
	t.Helper()
	s := &apiServer{pods: make(chan *corev1.Pod)}
	mux := http.NewServeMux()
	answer := func(path string, content any) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(content)
		})
	}
	answer("/api", metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
	answer("/apis", metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}})
	answer("/api/v1", metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "v1", APIResources: []metav1.APIResource{
		{Name: "pods", Kind: "Pod", Namespaced: true}, {Name: "nodes", Kind: "Node"},
	}})
	mux.HandleFunc("GET /api/v1/namespaces/kube-system/pods", s.watch)
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.CloseClientConnections)
	return s
}

func (s *apiServer) config() *rest.Config {
	return &rest.Config{Host: s.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
}

// watch sends the end of the initial events, and then the pods of the channel.
func (s *apiServer) watch(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.watches = append(s.watches, r.URL.Query())
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	end := &corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}}
	end.ResourceVersion, end.Annotations = "1", map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	event := map[string]any{"type": "BOOKMARK", "object": end}
	for {
		if json.NewEncoder(w).Encode(event) != nil {
			return
		}
		w.(http.Flusher).Flush() //nolint:forcetypeassert,errcheck // net/http implements it.
		select {
		case <-r.Context().Done():
			return
		case pod := <-s.pods:
			event = map[string]any{"type": "ADDED", "object": pod}
		}
	}
}
