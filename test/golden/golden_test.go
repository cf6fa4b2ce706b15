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
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/plugins/device"
	"github.com/prebind/prebind/binder/plugins/nodestate"
	"github.com/prebind/prebind/binder/plugins/resourceclaims"
	"github.com/prebind/prebind/binder/plugins/volumebinding"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/mutators/bindinfo"
	"github.com/prebind/prebind/mutators/deviceinfo"
	"github.com/prebind/prebind/mutators/nodeinfo"
	"github.com/prebind/prebind/mutators/topology"
)

var update = flag.Bool("update", false, "write the golden answers anew")

const (
	domain    = "prebind.dev"
	namespace = "prebind-system"
)

// world is what a case's objects make, and the parts that work on it.
type world struct {
	client  client.WithWatch
	changes *framework.Hub
}

// setup is what is switched on in a case.
type setup struct {
	mutators []mutators.Mutator
	required []string
	plugins  func(t *testing.T, w world) []framework.PreBinder
	dryRun   bool
}

func must[T any](t *testing.T) func(value T, err error) T {
	t.Helper()
	return func(value T, err error) T {
		t.Helper()
		require.NoError(t, err)
		return value
	}
}

func withNodeState(t *testing.T, w world) []framework.PreBinder {
	return []framework.PreBinder{must[*nodestate.Plugin](t)(nodestate.New(
		framework.Handle{Cached: w.client, Live: w.client, Changes: w.changes, Clock: clock.RealClock{}},
		&nodestate.Arguments{Checks: nodestate.CheckNames(), MaxWait: time.Minute},
	))}
}

func withDevice(t *testing.T, w world) []framework.PreBinder {
	return []framework.PreBinder{must[*device.Plugin](t)(device.New(device.Options{
		Cached: w.client, Live: w.client, Writer: w.client, Changes: w.changes, Clock: clock.RealClock{}, Domain: domain, Namespace: namespace,
		NodeLockTimeout: time.Minute,
	}))}
}

func withVolumes(t *testing.T, w world) []framework.PreBinder {
	return []framework.PreBinder{must[*volumebinding.Plugin](t)(volumebinding.New(volumebinding.Options{
		Cached: w.client, Live: w.client, Writer: w.client, Changes: w.changes, Free: volumebinding.NewFreeVolumes(),
	}))}
}

func withClaims(t *testing.T, w world) []framework.PreBinder {
	h := framework.Handle{Cached: w.client, Live: w.client, Writer: w.client, Status: w.client, Changes: w.changes, Clock: clock.RealClock{}}
	return []framework.PreBinder{must[*resourceclaims.Plugin](t)(resourceclaims.New(h, &resourceclaims.Arguments{BindingTimeout: 10 * time.Minute}))}
}

func topologyOf(t *testing.T, o topology.Options) mutators.Mutator {
	return must[*topology.Mutator](t)(topology.New(o))
}

// TestGolden posts the Binding of testdata/NAME.yaml, the last of its documents,
// in a world of the others, and compares the answer, and what is written by then,
// with testdata/NAME.answer.yaml.
func TestGolden(t *testing.T) {
	everywhere := topology.Options{
		Labels:    []string{corev1.LabelTopologyZone, "example.com/rack", "net.example.com/*=net-*"},
		Path:      []string{corev1.LabelTopologyRegion, corev1.LabelTopologyZone, "example.com/rack"},
		PodLabels: []string{"zone", "rack"},
	}
	replacing := everywhere
	replacing.ReplacePodLabels = true
	cases := map[string]struct {
		reason string
		setup  func(t *testing.T) setup
	}{
		"nothing-on": {reason: "a Binding passes unchanged", setup: func(*testing.T) setup { return setup{} }},
		"nothing-on-invalid": {reason: "but not if it would lock the pod for ever", setup: func(*testing.T) setup {
			return setup{}
		}},
		"topology": {reason: "labels, a prefix, a path, and labels of the pod", setup: func(t *testing.T) setup {
			return setup{mutators: []mutators.Mutator{topologyOf(t, everywhere)}}
		}},
		"topology-own-label": {reason: "a label of the user's own is kept; an annotation is not", setup: func(t *testing.T) setup {
			return setup{mutators: []mutators.Mutator{topologyOf(t, everywhere)}}
		}},
		"topology-replaced-label": {reason: "unless the operator says so", setup: func(t *testing.T) setup {
			return setup{mutators: []mutators.Mutator{topologyOf(t, replacing)}}
		}},
		"topology-incomplete": {reason: "half a path would be a wrong one", setup: func(t *testing.T) setup {
			return setup{mutators: []mutators.Mutator{topologyOf(t, everywhere)}}
		}},
		"topology-required": {reason: "no pod is bound without it", setup: func(t *testing.T) setup {
			return setup{mutators: []mutators.Mutator{topologyOf(t, everywhere)}, required: []string{topology.Name}}
		}},
		"node-info": {reason: "facts of the node, and an annotation", setup: func(t *testing.T) setup {
			return setup{mutators: []mutators.Mutator{must[*nodeinfo.Mutator](t)(nodeinfo.New(nodeinfo.Options{Annotations: []string{"example.com/driver-version"}}))}}
		}},
		"bind-info": {reason: "who bound it, and when", setup: func(*testing.T) setup {
			return setup{mutators: []mutators.Mutator{bindinfo.New()}}
		}},
		"device-info": {reason: "what the plugin device and a claim gave", setup: func(*testing.T) setup {
			return setup{mutators: []mutators.Mutator{deviceinfo.New()}, plugins: withDevice}
		}},
		"node-state":                  {reason: "all is as it should be", setup: func(*testing.T) setup { return setup{plugins: withNodeState} }},
		"node-state-cordoned":         {reason: "drained after the decision", setup: func(*testing.T) setup { return setup{plugins: withNodeState} }},
		"node-state-expectation":      {reason: "the scheduler believed something else", setup: func(*testing.T) setup { return setup{plugins: withNodeState} }},
		"node-state-wait":             {reason: "it may come true", setup: func(*testing.T) setup { return setup{plugins: withNodeState} }},
		"node-state-invalid":          {reason: "its author is told what is wrong", setup: func(*testing.T) setup { return setup{plugins: withNodeState} }},
		"node-state-dry-run":          {reason: "what it would wait for", setup: func(*testing.T) setup { return setup{plugins: withNodeState, dryRun: true} }},
		"device":                      {reason: "granted, and recorded", setup: func(*testing.T) setup { return setup{plugins: withDevice} }},
		"device-shares":               {reason: "two halves fit", setup: func(*testing.T) setup { return setup{plugins: withDevice} }},
		"device-taken":                {reason: "the holder is named", setup: func(*testing.T) setup { return setup{plugins: withDevice} }},
		"device-holder-gone":          {reason: "looked up, not guessed", setup: func(*testing.T) setup { return setup{plugins: withDevice} }},
		"device-locked":               {reason: "one bind at a time", setup: func(*testing.T) setup { return setup{plugins: withDevice} }},
		"device-invalid":              {reason: "its author is told what is wrong", setup: func(*testing.T) setup { return setup{plugins: withDevice} }},
		"device-dry-run":              {reason: "nothing is written", setup: func(*testing.T) setup { return setup{plugins: withDevice, dryRun: true} }},
		"device-record-unreadable":    {reason: "nothing is lost", setup: func(*testing.T) setup { return setup{plugins: withDevice} }},
		"volumebinding":               {reason: "the claim's volume is in place", setup: func(*testing.T) setup { return setup{plugins: withVolumes} }},
		"volumebinding-waiting":       {reason: "the volume is in the making", setup: func(*testing.T) setup { return setup{plugins: withVolumes} }},
		"volumebinding-missing":       {reason: "there is no such claim", setup: func(*testing.T) setup { return setup{plugins: withVolumes} }},
		"resource-claims":             {reason: "the scheduler has done it all", setup: func(*testing.T) setup { return setup{plugins: withClaims} }},
		"resource-claims-reserved":    {reason: "marked, and reserved for the pod", setup: func(*testing.T) setup { return setup{plugins: withClaims} }},
		"resource-claims-dry-run":     {reason: "nothing is written", setup: func(*testing.T) setup { return setup{plugins: withClaims, dryRun: true} }},
		"resource-claims-missing":     {reason: "there is no such claim", setup: func(*testing.T) setup { return setup{plugins: withClaims} }},
		"resource-claims-unallocated": {reason: "nobody has chosen devices", setup: func(*testing.T) setup { return setup{plugins: withClaims} }},
		"resource-claims-elsewhere":   {reason: "its devices are those of another node", setup: func(*testing.T) setup { return setup{plugins: withClaims} }},
		"resource-claims-waiting":     {reason: "the driver prepares the device", setup: func(*testing.T) setup { return setup{plugins: withClaims} }},
		"resource-claims-failed":      {reason: "the driver cannot prepare it", setup: func(*testing.T) setup { return setup{plugins: withClaims} }},
		"resource-claims-unmade":      {reason: "the template's claim is still to be made", setup: func(*testing.T) setup { return setup{plugins: withClaims} }},
		"require-not-on":              {reason: "whoever asks relies on it", setup: func(*testing.T) setup { return setup{plugins: withNodeState} }},
		"everything-together-taken": {reason: "a refusal after mutators keeps the warnings", setup: func(t *testing.T) setup {
			return setup{mutators: []mutators.Mutator{topologyOf(t, everywhere)}, plugins: func(t *testing.T, w world) []framework.PreBinder {
				return append(withNodeState(t, w), withDevice(t, w)...)
			}}
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			objects, binding := read(t, name)
			synctest.Test(t, func(t *testing.T) {
				got := post(t, tc.setup(t), objects, binding)
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
func versions(t *testing.T, c client.Client) map[types.NamespacedName]string {
	t.Helper()
	all := map[types.NamespacedName]string{}
	each(t, c, func(o client.Object) { all[client.ObjectKeyFromObject(o)] = o.GetResourceVersion() })
	return all
}

// written are the objects that were changed or made.
func written(t *testing.T, c client.Client, before map[types.NamespacedName]string) []any {
	t.Helper()
	var changed []any
	each(t, c, func(o client.Object) {
		if before[client.ObjectKeyFromObject(o)] == o.GetResourceVersion() {
			return
		}
		o.SetResourceVersion("")
		changed = append(changed, o)
	})
	return changed
}

func each(t *testing.T, c client.Client, do func(o client.Object)) {
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
