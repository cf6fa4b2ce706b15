// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package golden contains a review and the expected response for every behavior of every mutator and PreBind plugin. It uses the
// real handler, engine, mutators and plugins with a few objects.
package golden

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/plugins/announce"
	"github.com/prebind/prebind/binder/plugins/device"
	"github.com/prebind/prebind/binder/plugins/nodeready"
	"github.com/prebind/prebind/binder/plugins/nodestate"
	"github.com/prebind/prebind/binder/plugins/policy"
	"github.com/prebind/prebind/binder/plugins/resourceclaims"
	"github.com/prebind/prebind/binder/plugins/startlimit"
	"github.com/prebind/prebind/binder/plugins/volumebinding"
	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/mutators/bindinfo"
	"github.com/prebind/prebind/mutators/deviceinfo"
	"github.com/prebind/prebind/mutators/nodeinfo"
	"github.com/prebind/prebind/mutators/topology"
	policyv1alpha1 "github.com/prebind/prebind/policy/v1alpha1"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

var update = flag.Bool("update", false, "Update the golden responses.")

const (
	domain    = "prebind.dev"
	namespace = "prebind-system"
)

// setup selects the components of a case.
type setup struct {
	mutators []on
	required []string
	plugins  []on
	// added contains plugins that are not in the registry.
	added  []framework.Plugin
	dryRun bool
}

// on is a mutator or a plugin of the registry with its arguments. nil means the defaults.
type on struct {
	name      string
	arguments v1alpha1.Arguments
}

var (
	announced = on{name: announce.Name}
	nodeState = on{nodestate.Name, &nodestate.Arguments{Checks: nodestate.CheckNames(), MaxWait: metav1.Duration{Duration: time.Minute}}}
	nodeReady = on{nodeready.Name, &nodeready.Arguments{
		Checks: nodeready.Checks(), Conditions: []string{"GPUReady"},
		Timeout: metav1.Duration{Duration: 2 * time.Second}, MaxTimeout: metav1.Duration{Duration: time.Minute},
		Agents: []nodeready.Agent{{Namespace: "network", Selector: "app=cni"}},
	}}
	policies = on{policy.Name, &policy.Arguments{KeyPrefixes: []string{"ray.io"}}}
	devices  = on{device.Name, &device.Arguments{NodeLockTimeout: metav1.Duration{Duration: time.Minute}}}
	volumes  = on{name: volumebinding.Name}
	claims   = on{name: resourceclaims.Name}
	starts   = on{startlimit.Name, startLimit(2)}
)

func startLimit(limit int) *startlimit.Arguments {
	a := startlimit.Defaults()
	a.Limit = limit
	return a
}

// TestGolden posts the Binding of testdata/NAME.yaml, which is its last document. The other documents are the existing objects.
// It compares the response and the objects that Prebind has written with testdata/NAME.answer.yaml.
func TestGolden(t *testing.T) {
	everywhere := topology.Arguments{
		Labels:    []string{corev1.LabelTopologyZone, "example.com/rack", "net.example.com/*=net-*"},
		Path:      []string{corev1.LabelTopologyRegion, corev1.LabelTopologyZone, "example.com/rack"},
		PodLabels: []string{"zone", "rack"},
	}
	replacing := everywhere
	replacing.ReplacePodLabels = true
	places := on{topology.Name, &everywhere}
	cases := map[string]struct {
		reason string
		setup  setup
	}{
		"nothing-on":                  {reason: "a Binding passes unchanged", setup: setup{}},
		"nothing-on-invalid":          {reason: "an invalid Binding is denied, because it would lock the pod forever", setup: setup{}},
		"topology":                    {reason: "the response contains labels, a prefix, a path and labels of the pod", setup: setup{mutators: []on{places}}},
		"topology-own-label":          {reason: "topology keeps labels of the user and replaces annotations", setup: setup{mutators: []on{places}}},
		"topology-replaced-label":     {reason: "topology replaces labels of the user if the operator enables it", setup: setup{mutators: []on{{topology.Name, &replacing}}}},
		"topology-incomplete":         {reason: "an incomplete path is omitted", setup: setup{mutators: []on{places}}},
		"topology-required":           {reason: "a pod without its required topology is not bound", setup: setup{mutators: []on{places}, required: []string{topology.Name}}},
		"node-info":                   {reason: "the response contains node information and an annotation of the node", setup: setup{mutators: []on{{nodeinfo.Name, &nodeinfo.Arguments{Annotations: []string{"example.com/driver-version"}}}}}},
		"bind-info":                   {reason: "the response contains the user and the time of the bind", setup: setup{mutators: []on{{name: bindinfo.Name}}}},
		"device-info":                 {reason: "the response contains the devices of the plugin device and of a claim", setup: setup{mutators: []on{{name: deviceinfo.Name}}, plugins: []on{devices}}},
		"announce":                    {reason: "the node of a bind that waits is in the status of the pod", setup: setup{plugins: []on{announced, nodeState}}},
		"announce-nominated":          {reason: "the scheduler has nominated another node", setup: setup{plugins: []on{announced, nodeState}}},
		"announce-nothing-to-do":      {reason: "the bind does not wait", setup: setup{plugins: []on{announced, nodeState}}},
		"node-state":                  {reason: "the state of the node matches", setup: setup{plugins: []on{nodeState}}},
		"node-state-cordoned":         {reason: "the node was cordoned after the scheduling decision", setup: setup{plugins: []on{nodeState}}},
		"node-state-expectation":      {reason: "the expectation of the scheduler does not match the node", setup: setup{plugins: []on{nodeState}}},
		"node-state-wait":             {reason: "the pod waits for the state of the node", setup: setup{plugins: []on{nodeState}}},
		"node-state-invalid":          {reason: "the denial names the invalid annotations", setup: setup{plugins: []on{nodeState}}},
		"node-state-dry-run":          {reason: "a dry run reports the state that a bind would wait for", setup: setup{plugins: []on{nodeState}, dryRun: true}},
		"node-ready":                  {reason: "the node has everything that the pod needs", setup: setup{plugins: []on{nodeReady}}},
		"node-ready-waiting":          {reason: "the message lists what is missing", setup: setup{plugins: []on{nodeReady}}},
		"node-ready-timeout":          {reason: "the bind is rejected after the limit", setup: setup{plugins: []on{nodeReady}}},
		"node-ready-passes":           {reason: "the pod of a DaemonSet does not wait", setup: setup{plugins: []on{nodeReady}}},
		"node-ready-dry-run":          {reason: "a dry run reports what a bind would wait for", setup: setup{plugins: []on{nodeReady}, dryRun: true}},
		"node-ready-invalid":          {reason: "the denial names the invalid annotation", setup: setup{plugins: []on{nodeReady}}},
		"policy":                      {reason: "the policy adds an annotation, a label and an annotation with an allowed prefix", setup: setup{plugins: []on{policies}}},
		"policy-rejected":             {reason: "the denial contains the message of the policy", setup: setup{plugins: []on{policies}}},
		"policy-waiting":              {reason: "the pod waits for the CSI driver", setup: setup{plugins: []on{policies}}},
		"policy-timeout":              {reason: "the bind is rejected after the timeout of the wait", setup: setup{plugins: []on{policies}}},
		"policy-failed":               {reason: "an expression fails", setup: setup{plugins: []on{policies}}},
		"policy-audit":                {reason: "a policy in mode Audit only warns", setup: setup{plugins: []on{policies}}},
		"policy-dry-run":              {reason: "a dry run shows the result of each policy", setup: setup{plugins: []on{policies}, dryRun: true}},
		"policy-broken":               {reason: "a policy that does not compile follows its failure policy", setup: setup{plugins: []on{policies}}},
		"start-limit":                 {reason: "the last slot of the node is free", setup: setup{plugins: []on{starts}}},
		"start-limit-full":            {reason: "the pod waits for the pods on the node to start", setup: setup{plugins: []on{starts}}},
		"start-limit-dry-run":         {reason: "a dry run reports the wait", setup: setup{plugins: []on{starts}, dryRun: true}},
		"start-limit-refused":         {reason: "the kubelet rejects the pods of the namespace", setup: setup{plugins: []on{starts}}},
		"device":                      {reason: "the device is granted and recorded", setup: setup{plugins: []on{devices}}},
		"device-shares":               {reason: "two pods share a device", setup: setup{plugins: []on{devices}}},
		"device-taken":                {reason: "the denial names the holder of the device", setup: setup{plugins: []on{devices}}},
		"device-holder-gone":          {reason: "a device of a deleted pod is granted after a live read", setup: setup{plugins: []on{devices}}},
		"device-locked":               {reason: "another pod holds the lock of the node", setup: setup{plugins: []on{devices}}},
		"device-invalid":              {reason: "the denial names the invalid annotations", setup: setup{plugins: []on{devices}}},
		"device-dry-run":              {reason: "a dry run writes no objects", setup: setup{plugins: []on{devices}, dryRun: true}},
		"device-record-unreadable":    {reason: "an unreadable record is not overwritten", setup: setup{plugins: []on{devices}}},
		"volumebinding":               {reason: "the claim is bound to its volume", setup: setup{plugins: []on{volumes}}},
		"volumebinding-waiting":       {reason: "the volume is being provisioned", setup: setup{plugins: []on{volumes}}},
		"volumebinding-missing":       {reason: "the claim does not exist", setup: setup{plugins: []on{volumes}}},
		"resource-claims":             {reason: "the scheduler has allocated and reserved the claim", setup: setup{plugins: []on{claims}}},
		"resource-claims-reserved":    {reason: "the claim is marked and reserved for the pod", setup: setup{plugins: []on{claims}}},
		"resource-claims-dry-run":     {reason: "a dry run writes no objects", setup: setup{plugins: []on{claims}, dryRun: true}},
		"resource-claims-missing":     {reason: "the claim does not exist", setup: setup{plugins: []on{claims}}},
		"resource-claims-unallocated": {reason: "the claim is not allocated", setup: setup{plugins: []on{claims}}},
		"resource-claims-elsewhere":   {reason: "the claim is allocated on another node", setup: setup{plugins: []on{claims}}},
		"resource-claims-waiting":     {reason: "the driver prepares the device", setup: setup{plugins: []on{claims}}},
		"resource-claims-failed":      {reason: "the driver cannot prepare the device", setup: setup{plugins: []on{claims}}},
		"resource-claims-unmade":      {reason: "the claim of the template does not exist yet", setup: setup{plugins: []on{claims}}},
		"require-not-on":              {reason: "a pod that requires a disabled plugin is not bound", setup: setup{plugins: []on{nodeState}}},
		"passed-uid":                  {reason: "the API server rejects a Binding for an earlier pod of the same name", setup: setup{plugins: []on{nodeState}}},
		"passed-gated":                {reason: "the API server rejects a Binding of a gated pod, pinned to this version", setup: setup{plugins: []on{nodeState}}},
		"stale-version":               {reason: "the Binding is for an earlier version of the pod", setup: setup{plugins: []on{nodeState}}},
		"stale-missing":               {reason: "a pod that is created a moment later must not be bound unchecked", setup: setup{plugins: []on{nodeState}}},
		"everything-together-taken":   {reason: "mutators run only for a bind that is allowed", setup: setup{mutators: []on{places}, plugins: []on{nodeState, devices}}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			objects, binding := read(t, name)
			synctest.Test(t, func(t *testing.T) {
				p := newPrebind(t, tc.setup, objects)
				response := p.serve(t, reviewOf(binding, tc.setup.dryRun))
				require.Equal(t, http.StatusOK, response.Code)
				got := readable(t, response.Body.Bytes(), written(t, p))
				p.stop(t)
				golden := filepath.Join("testdata", name+".answer.yaml")
				if *update {
					require.NoError(t, os.WriteFile(golden, got, 0o600))
				}
				want, err := os.ReadFile(golden)
				require.NoError(t, err)
				assert.Equal(t, string(want), string(got), tc.reason)
			})
		})
	}
	files, err := filepath.Glob(filepath.Join("testdata", "*.yaml"))
	require.NoError(t, err)
	for _, path := range files {
		name, _, _ := strings.Cut(filepath.Base(path), ".")
		assert.Contains(t, cases, name, "every file belongs to a case")
	}
}

// read returns the objects of a case, and its Binding.
func read(t testing.TB, name string) (objects []client.Object, binding *corev1.Binding) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", name+".yaml"))
	require.NoError(t, err)
	scheme := runtime.NewScheme()
	require.NoError(t, errors.Join(clientgoscheme.AddToScheme(scheme), policyv1alpha1.AddToScheme(scheme)))
	decode := serializer.NewCodecFactory(scheme).UniversalDeserializer().Decode
	for document := range strings.SplitSeq(string(content), "\n---\n") {
		decoded, _, err := decode([]byte(document), nil, nil)
		require.NoError(t, err, "%s", document)
		if b, ok := decoded.(*corev1.Binding); ok {
			binding = b
			continue
		}
		o, ok := decoded.(client.Object)
		require.True(t, ok)
		objects = append(objects, o)
	}
	require.NotNil(t, binding, "every case needs a Binding")
	return objects, binding
}

var attempt = regexp.MustCompile(`replica-[a-z0-9]{10}`)

// readable returns the response as YAML, with a decoded patch and the written objects. It replaces random attempt IDs with a
// constant.
func readable(t *testing.T, body []byte, written []any) []byte {
	t.Helper()
	var review struct {
		Response map[string]any `json:"response"`
	}
	require.NoError(t, json.Unmarshal(body, &review))
	if review.Response["patch"] != nil {
		var typed admissionv1.AdmissionReview
		require.NoError(t, json.Unmarshal(body, &typed))
		var operations []any
		require.NoError(t, json.Unmarshal(typed.Response.Patch, &operations))
		review.Response["patch"] = operations
	}
	delete(review.Response, "uid")
	if review.Response["allowed"] == true {
		// controller-runtime adds a status to allowed responses, which the API server ignores.
		assert.Equal(t, map[string]any{"code": 200.0, "metadata": map[string]any{}}, review.Response["status"])
		delete(review.Response, "status")
	}
	all := map[string]any{"response": review.Response}
	if len(written) > 0 {
		all["written"] = written
	}
	out, err := yaml.Marshal(all)
	require.NoError(t, err)
	return attempt.ReplaceAll(out, []byte("replica-0123456789"))
}

// written returns created and changed objects without fields that the API server sets.
func written(t *testing.T, p *prebind) []any {
	t.Helper()
	verbs := map[string]string{}
	for _, w := range slices.Backward(p.server.Writes()) {
		verbs[w.Kind+" "+w.Key.String()] = w.Verb
	}
	var changed []any
	each(t, p.client, func(o client.Object) {
		verb, ok := verbs[fakeapi.Kind(o)+" "+client.ObjectKeyFromObject(o).String()]
		if !ok {
			return
		}
		if verb == "create" {
			o.SetUID("")
		}
		o.SetResourceVersion("")
		o.SetManagedFields(nil)
		changed = append(changed, o)
	})
	return changed
}

func each(t *testing.T, c client.Reader, do func(o client.Object)) {
	t.Helper()
	for _, list := range []client.ObjectList{
		&corev1.ConfigMapList{}, &resourcev1.ResourceClaimList{}, &corev1.PersistentVolumeClaimList{}, &corev1.PersistentVolumeList{},
		&corev1.PodList{}, &corev1.NodeList{},
	} {
		require.NoError(t, c.List(t.Context(), list))
		items, err := apimeta.ExtractList(list)
		require.NoError(t, err)
		for _, item := range items {
			o, ok := item.(client.Object)
			require.True(t, ok)
			do(o)
		}
	}
}

// denier is a plugin that denies the bind of the pod named first, in PreFlight or in PreBind.
type denier struct{ inPreFlight bool }

func (denier) Name() string { return "denier" }

func (d denier) PreFlight(bc *framework.BindContext) (framework.Verdict, error) {
	if bc.Written {
		return framework.Verdict{}, nil
	}
	return framework.Verdict{Writes: []string{"deny"}}, d.deny(bc, d.inPreFlight)
}

func (d denier) PreBind(_ context.Context, bc *framework.BindContext) error { return d.deny(bc, true) }

func (denier) PreBindRollBack(context.Context, framework.Mark) error { return nil }

func (denier) PostBind(context.Context, framework.Mark, *corev1.Pod) error { return nil }

func (denier) Marks(context.Context) ([]framework.Mark, error) { return nil, nil }

func (denier) deny(bc *framework.BindContext, now bool) error {
	if now && bc.Pod.Name == "first" {
		return framework.Refuse(framework.Object{}, "the plugin denies the pod first")
	}
	return nil
}

// TestDeniedBindKeepsNoClaim checks that a ReadWriteOncePod claim is free as soon as another plugin denies the bind after the
// PreFlight of volumebinding.
func TestDeniedBindKeepsNoClaim(t *testing.T) {
	for name, inPreFlight := range map[string]bool{"PreFlight": true, "PreBind": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				claim := gen.Claim("data", gen.UID("claim"), gen.AccessModes(corev1.ReadWriteOncePod), gen.BoundToVolume("pv"))
				objects := []client.Object{gen.Node("node-a"), claim, gen.Volume("pv", gen.ClaimRef(claim))}
				pod := func(name string) *corev1.Pod { return gen.Pod(name, gen.UID(types.UID(name)), gen.UsesClaim("data")) }
				p := newPrebind(t, setup{plugins: []on{volumes}, added: []framework.Plugin{denier{inPreFlight: inPreFlight}}}, append(objects, pod("first"), pod("second")))
				defer p.stop(t)
				bind := func(name string) *admissionv1.AdmissionResponse {
					var review admissionv1.AdmissionReview
					response := p.serve(t, reviewOf(gen.Binding(pod(name), "node-a"), false))
					require.NoError(t, json.Unmarshal(response.Body.Bytes(), &review))
					synctest.Wait()
					return review.Response
				}
				require.False(t, bind("first").Allowed)
				second := bind("second")
				assert.True(t, second.Allowed, "%v", second.Result)
			})
		})
	}
}
