// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package golden

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/claimed"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/plugins/volumebinding"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/webhook"
)

// prebind is the real handler and engine over a small world. It lives in one
// bubble of time.
type prebind struct {
	world
	engine  *binder.Engine
	handler http.Handler
}

func newPrebind(t *testing.T, s setup, objects []client.Object) *prebind {
	t.Helper()
	builder := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(objects...).WithStatusSubresource(&resourcev1.ResourceClaim{})
	require.NoError(t, volumebinding.SetupIndexes(t.Context(), indexes{builder: builder}))
	w := world{client: withPodSelectors{builder.Build()}, changes: framework.NewHub()}
	var plugins []framework.PreBinder
	if s.plugins != nil {
		plugins = s.plugins(t, w)
	}
	engine, err := binder.New(binder.Options{
		Cached: w.client, Live: w.client,
		Settings: binder.Settings{
			Mode: binder.ModeEnforce, Plugins: plugins, Claimed: claimed.New(w.client, w.client).Devices,
			Mutators: must[*mutators.Chain](t)(mutators.NewChain(mutators.Options{Mutators: s.mutators, Required: s.required})),
			Hold:     5 * time.Second, MaxHolds: 10, PreBindTimeout: time.Minute, MaxPreBindTimeout: time.Minute,
		},
		Replica: "replica", Changes: w.changes, Events: events.NewFakeRecorder(100), Clock: clock.RealClock{},
	})
	require.NoError(t, err)
	handler, err := webhook.NewHandler(webhook.Options{Engine: engine, Ready: func() error { return nil }, Log: logr.Discard(), Clock: clock.RealClock{}, Domain: domain})
	require.NoError(t, err)
	return &prebind{world: w, engine: engine, handler: handler}
}

// reviewOf is what the API server posts for the Binding.
func reviewOf(t testing.TB, binding *corev1.Binding, dryRun bool) []byte {
	t.Helper()
	raw, err := json.Marshal(binding)
	require.NoError(t, err)
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: "review-1", Operation: admissionv1.Create, Namespace: binding.Namespace, Name: binding.Name,
			Kind:     metav1.GroupVersionKind{Version: "v1", Kind: "Binding"},
			Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"}, SubResource: "binding",
			UserInfo: authenticationv1.UserInfo{Username: "system:serviceaccount:batch:gpu-scheduler"},
			DryRun:   &dryRun, Object: runtime.RawExtension{Raw: raw},
		},
	})
	require.NoError(t, err)
	return body
}

// serve posts the body as the API server does.
func (p *prebind) serve(t *testing.T, body []byte) *httptest.ResponseRecorder {
	t.Helper()
	ctx := klog.NewContext(t.Context(), logr.Discard())
	request := httptest.NewRequestWithContext(ctx, http.MethodPost, webhook.Path+"?timeout=10s", bytes.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	response := httptest.NewRecorder()
	p.handler.ServeHTTP(response, request)
	return response
}

// stop ends the engine and whatever it is at.
func (p *prebind) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, p.engine.Stop(klog.NewContext(context.WithoutCancel(t.Context()), logr.Discard())))
}

// indexes adds the plugins' indexes to the fake client.
type indexes struct{ builder *fake.ClientBuilder }

func (i indexes) IndexField(_ context.Context, o client.Object, field string, extract client.IndexerFunc) error {
	i.builder.WithIndex(o, field, extract)
	return nil
}

// withPodSelectors is a client that selects pods by fields as the API server does;
// the fake one knows only what it has indexes for, one at a time.
type withPodSelectors struct{ client.WithWatch }

func (c withPodSelectors) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	o := (&client.ListOptions{}).ApplyOptions(opts)
	pods, ok := list.(*corev1.PodList)
	if !ok || o.FieldSelector == nil {
		return c.WithWatch.List(ctx, list, opts...)
	}
	if err := c.WithWatch.List(ctx, pods); err != nil {
		return err
	}
	kept := pods.Items[:0]
	for _, pod := range pods.Items {
		if o.FieldSelector.Matches(podFields{&pod}) {
			kept = append(kept, pod)
		}
	}
	pods.Items = kept
	return nil
}

// podFields are the fields by which pods are selected.
type podFields struct{ pod *corev1.Pod }

func (f podFields) Has(field string) bool { return field == "spec.nodeName" || field == "status.phase" }

func (f podFields) Get(field string) string {
	if field == "spec.nodeName" {
		return f.pod.Spec.NodeName
	}
	return string(f.pod.Status.Phase)
}
