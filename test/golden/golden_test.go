// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package golden holds one review and its answer for every behaviour of every
// mutator and PreBind plugin: the real handler, engine, mutators and plugins, over
// a small world of objects.
package golden

import (
	"encoding/json"
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
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
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/plugins/device"
	"github.com/prebind/prebind/binder/plugins/nodestate"
	"github.com/prebind/prebind/binder/plugins/resourceclaims"
	"github.com/prebind/prebind/binder/plugins/volumebinding"
	"github.com/prebind/prebind/mutators/bindinfo"
	"github.com/prebind/prebind/mutators/deviceinfo"
	"github.com/prebind/prebind/mutators/nodeinfo"
	"github.com/prebind/prebind/mutators/topology"
	"github.com/prebind/prebind/registration"
)

var update = flag.Bool("update", false, "update the golden answers")

const (
	domain    = "prebind.dev"
	namespace = "prebind-system"
)

// setup is what is switched on in a case.
type setup struct {
	mutators []on
	required []string
	plugins  []on
	// added are plugins that are not in the registry.
	added  []framework.PreBinder
	dryRun bool
}

// on is a mutator or a plugin of the registry, with its arguments; nil for the defaults.
type on struct {
	name      string
	arguments registration.Arguments
}

var (
	nodeState = on{nodestate.Name, &nodestate.Arguments{Checks: nodestate.CheckNames(), MaxWait: time.Minute}}
	devices   = on{device.Name, &device.Arguments{NodeLockTimeout: time.Minute}}
	volumes   = on{name: volumebinding.Name}
	claims    = on{name: resourceclaims.Name}
)

// TestGolden posts the Binding of testdata/NAME.yaml, the last of its documents,
// in a world of the others, and compares the answer, and what is written by then,
// with testdata/NAME.answer.yaml.
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
		"nothing-on-invalid":          {reason: "but not if it would lock the pod for ever", setup: setup{}},
		"topology":                    {reason: "labels, a prefix, a path, and labels of the pod", setup: setup{mutators: []on{places}}},
		"topology-own-label":          {reason: "a label of the user's own is kept; an annotation is not", setup: setup{mutators: []on{places}}},
		"topology-replaced-label":     {reason: "unless the operator says so", setup: setup{mutators: []on{{topology.Name, &replacing}}}},
		"topology-incomplete":         {reason: "half a path would be a wrong one", setup: setup{mutators: []on{places}}},
		"topology-required":           {reason: "no pod is bound without it", setup: setup{mutators: []on{places}, required: []string{topology.Name}}},
		"node-info":                   {reason: "facts of the node, and an annotation", setup: setup{mutators: []on{{nodeinfo.Name, &nodeinfo.Arguments{Annotations: []string{"example.com/driver-version"}}}}}},
		"bind-info":                   {reason: "who bound it, and when", setup: setup{mutators: []on{{name: bindinfo.Name}}}},
		"device-info":                 {reason: "what the plugin device and a claim gave", setup: setup{mutators: []on{{name: deviceinfo.Name}}, plugins: []on{devices}}},
		"node-state":                  {reason: "all is as it should be", setup: setup{plugins: []on{nodeState}}},
		"node-state-cordoned":         {reason: "drained after the decision", setup: setup{plugins: []on{nodeState}}},
		"node-state-expectation":      {reason: "the scheduler believed something else", setup: setup{plugins: []on{nodeState}}},
		"node-state-wait":             {reason: "it may come true", setup: setup{plugins: []on{nodeState}}},
		"node-state-invalid":          {reason: "the author gets the reason", setup: setup{plugins: []on{nodeState}}},
		"node-state-dry-run":          {reason: "what it would wait for", setup: setup{plugins: []on{nodeState}, dryRun: true}},
		"device":                      {reason: "granted, and recorded", setup: setup{plugins: []on{devices}}},
		"device-shares":               {reason: "two halves fit", setup: setup{plugins: []on{devices}}},
		"device-taken":                {reason: "the holder is named", setup: setup{plugins: []on{devices}}},
		"device-holder-gone":          {reason: "looked up, not guessed", setup: setup{plugins: []on{devices}}},
		"device-locked":               {reason: "one bind at a time", setup: setup{plugins: []on{devices}}},
		"device-invalid":              {reason: "the author gets the reason", setup: setup{plugins: []on{devices}}},
		"device-dry-run":              {reason: "nothing is written", setup: setup{plugins: []on{devices}, dryRun: true}},
		"device-record-unreadable":    {reason: "nothing is lost", setup: setup{plugins: []on{devices}}},
		"volumebinding":               {reason: "the claim's volume is in place", setup: setup{plugins: []on{volumes}}},
		"volumebinding-waiting":       {reason: "the volume is being provisioned", setup: setup{plugins: []on{volumes}}},
		"volumebinding-missing":       {reason: "there is no such claim", setup: setup{plugins: []on{volumes}}},
		"resource-claims":             {reason: "the scheduler has done it all", setup: setup{plugins: []on{claims}}},
		"resource-claims-reserved":    {reason: "marked, and reserved for the pod", setup: setup{plugins: []on{claims}}},
		"resource-claims-dry-run":     {reason: "nothing is written", setup: setup{plugins: []on{claims}, dryRun: true}},
		"resource-claims-missing":     {reason: "there is no such claim", setup: setup{plugins: []on{claims}}},
		"resource-claims-unallocated": {reason: "no scheduler has chosen devices", setup: setup{plugins: []on{claims}}},
		"resource-claims-elsewhere":   {reason: "its devices are those of another node", setup: setup{plugins: []on{claims}}},
		"resource-claims-waiting":     {reason: "the driver prepares the device", setup: setup{plugins: []on{claims}}},
		"resource-claims-failed":      {reason: "the driver cannot prepare it", setup: setup{plugins: []on{claims}}},
		"resource-claims-unmade":      {reason: "the template's claim is still to be made", setup: setup{plugins: []on{claims}}},
		"require-not-on":              {reason: "a required plugin must run", setup: setup{plugins: []on{nodeState}}},
		"everything-together-taken":   {reason: "a refusal after mutators keeps the warnings", setup: setup{mutators: []on{places}, plugins: []on{nodeState, devices}}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			objects, binding := read(t, name)
			synctest.Test(t, func(t *testing.T) {
				got := post(t, tc.setup, objects, binding)
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
	decode := clientgoscheme.Codecs.UniversalDeserializer().Decode
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
	require.NotNil(t, binding, "a case has a Binding")
	return objects, binding
}

// post has the Binding reviewed and returns the answer, and what was written.
func post(t *testing.T, s setup, objects []client.Object, binding *corev1.Binding) []byte {
	t.Helper()
	p := newPrebind(t, s, objects)
	before := versions(t, p.client)
	response := p.serve(t, reviewOf(t, binding, s.dryRun))
	require.Equal(t, http.StatusOK, response.Code)
	answer := readable(t, response.Body.Bytes(), written(t, p.client, before))
	p.stop(t)
	return answer
}

var attempt = regexp.MustCompile(`replica-[a-z0-9]{10}`)

// readable is the answer as YAML, its patch decoded, with what was written. An
// attempt's ID, which is random, is the same in all of them.
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
		// The library adds this to an answer that allows, and the API server does not read it.
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

// kinds are those that plugins write.
func kinds() []client.ObjectList {
	return []client.ObjectList{&corev1.ConfigMapList{}, &resourcev1.ResourceClaimList{}, &corev1.PersistentVolumeClaimList{}, &corev1.PersistentVolumeList{}, &corev1.PodList{}, &corev1.NodeList{}}
}

// versions are the resource versions of all objects.
func versions(t *testing.T, c client.Reader) map[types.NamespacedName]string {
	t.Helper()
	all := map[types.NamespacedName]string{}
	each(t, c, func(o client.Object) { all[client.ObjectKeyFromObject(o)] = o.GetResourceVersion() })
	return all
}

// written are the objects that were changed or made, without what the API server adds.
func written(t *testing.T, c client.Reader, before map[types.NamespacedName]string) []any {
	t.Helper()
	var changed []any
	each(t, c, func(o client.Object) {
		was, had := before[client.ObjectKeyFromObject(o)]
		if was == o.GetResourceVersion() {
			return
		}
		if !had {
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
	for _, list := range kinds() {
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
