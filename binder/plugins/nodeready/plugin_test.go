// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeready

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/test/gen"
)

const (
	driverName = "csi.example.com"
	gpu        = "gpu.example.com/card"
	network    = "network"
	podOfAgent = "the pod of DaemonSet network/cni on node-a to be Ready"
)

func csiNodeWith(drivers ...storagev1.CSINodeDriver) *storagev1.CSINode {
	return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}, Spec: storagev1.CSINodeSpec{Drivers: drivers}}
}

func theDriver(limit ...int32) storagev1.CSINodeDriver {
	d := storagev1.CSINodeDriver{Name: driverName, NodeID: "node-a"}
	if len(limit) > 0 {
		d.Allocatable = &storagev1.VolumeNodeResources{Count: &limit[0]}
	}
	return d
}

func csiVolumeNamed(name, claim string) *corev1.PersistentVolume {
	return gen.Volume(name, gen.VolumePhase(corev1.VolumeBound), gen.ClaimRef(gen.Claim(claim, gen.UID(types.UID(claim)))),
		gen.VolumeSource(corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: name}}))
}

func attached(name, node, volume string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driverName, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume},
		},
	}
}

func inline(driver string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "inline", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driver}}})
	}
}

func requests(name corev1.ResourceName, n string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{name: resource.MustParse(n)}
	}
}

func served(name string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{RequestMappings: []corev1.ContainerExtendedResourceRequest{{ResourceName: name}}}
	}
}

func sidecar(name corev1.ResourceName, n string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, corev1.Container{
			Name: "side", RestartPolicy: new(corev1.ContainerRestartPolicyAlways),
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{name: resource.MustParse(n)}},
		})
	}
}

// daemon returns a DaemonSet whose pods an agent of the tests selects.
func daemon(name string, change ...func(*corev1.PodSpec)) *appsv1.DaemonSet {
	ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: network, Name: name, UID: types.UID(name)}}
	ds.Spec.Template.Labels = map[string]string{"app": "cni"}
	for _, f := range change {
		f(&ds.Spec.Template.Spec)
	}
	return ds
}

func agentOn(node, owner string, ready bool, options ...gen.PodOption) *corev1.Pod {
	options = append([]gen.PodOption{
		gen.InNamespace(network), gen.Label("app", "cni"), gen.BoundTo(node), gen.OwnedBy("DaemonSet", owner, types.UID(owner)),
	}, options...)
	pod := gen.Pod(owner+"-"+node, options...)
	if ready {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	return pod
}

func theNode(change ...func(*corev1.Node)) *corev1.Node {
	node := gen.Node("node-a", gen.UID("node-a"), gen.Label("pool", "gpu"))
	for _, f := range change {
		f(node)
	}
	return node
}

func reports(kind, status string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeConditionType(kind), Status: corev1.ConditionStatus(status)})
	}
}

func offers(name corev1.ResourceName, n string) func(*corev1.Node) {
	return func(node *corev1.Node) { node.Status.Allocatable = corev1.ResourceList{name: resource.MustParse(n)} }
}

// at sets addresses of the node: IP addresses, or names.
func at(addresses ...string) func(*corev1.Node) {
	return func(node *corev1.Node) {
		for _, a := range addresses {
			node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
		}
	}
}

// hosted returns the Ready pod of the agent on node-a, whose kubelet reports the address.
func hosted(address string) *corev1.Pod {
	pod := agentOn("node-a", "cni", true)
	pod.Status.HostIP = address
	return pod
}

func tainted(key string, effect corev1.TaintEffect) func(*corev1.Node) {
	return func(node *corev1.Node) {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Effect: effect})
	}
}

// withAgent are arguments with one agent.
func withAgent(nodes string) *Arguments {
	a := defaults()
	a.Agents = []Agent{{Namespace: network, Selector: "app=cni", NodeSelector: nodes}}
	return a
}

func withConditions(conditions ...string) *Arguments {
	a := defaults()
	a.Conditions = conditions
	return a
}

func only(a *Arguments, checks ...string) *Arguments {
	a.Checks = checks
	return a
}

// cluster returns the plugin with the objects. Nil arguments are the defaults.
func cluster(t *testing.T, args *Arguments, objects ...client.Object) *frameworktest.Cluster {
	t.Helper()
	if args == nil {
		args = defaults()
	}
	return frameworktest.New(t, Registration(), args, objects...)
}

// errorOf returns the error of the outcome, so that nil is nil.
func errorOf(o binder.Decision) error {
	if o.Err == nil {
		return nil
	}
	return o.Err
}

// The table covers reading and deciding together.
func TestPreFlight(t *testing.T) {
	const waitsForDriver = "CSI driver csi.example.com to register on the node"
	bound := []client.Object{gen.Claim("data", gen.BoundToVolume("pv-1")), csiVolumeNamed("pv-1", "data")}
	unbound := []client.Object{gen.Claim("data", gen.OfClass("fast")), gen.StorageClass("fast", driverName)}
	inTree := gen.Volume("pv-1", gen.VolumeSource(corev1.PersistentVolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "disk"}}))
	vSphere := gen.Volume("pv-1", gen.VolumeSource(corev1.PersistentVolumeSource{VsphereVolume: &corev1.VsphereVirtualDiskVolumeSource{VolumePath: "[store] disk.vmdk"}}))
	const gce = "pd.csi.storage.gke.io"
	known := gen.CSIDriver(driverName, false)
	earlier := csiNodeWith(theDriver())
	gen.OwnedBy("Node", "node-a", "before")(&earlier.ObjectMeta)
	inlineAttached, deleted, unlabelled := attached("a", "node-a", ""), daemon("cni"), daemon("cni")
	inlineAttached.Spec.Source.PersistentVolumeName, unlabelled.Spec.Template.Labels = nil, nil
	gen.Terminating()(&deleted.ObjectMeta)
	with := func(some []client.Object, more ...client.Object) []client.Object {
		return append(append([]client.Object{}, some...), more...)
	}
	cases := map[string]struct {
		reason  string
		args    *Arguments
		pod     []gen.PodOption
		change  func(*corev1.Pod)
		node    *corev1.Node
		objects []client.Object
		// waits is what the bind waits for. It is empty if the bind passes.
		waits  string
		object framework.Object
	}{
		"Nothing": {reason: "the pod needs nothing"},

		"NotRegistered":     {reason: "the driver of a bound claim is not registered", pod: []gen.PodOption{gen.UsesClaim("data")}, objects: with(bound, csiNodeWith(), known), waits: waitsForDriver, object: framework.Object{Kind: "CSINode", Name: "node-a"}},
		"NoCSINode":         {reason: "the node is new", pod: []gen.PodOption{gen.UsesClaim("data")}, objects: with(bound, known), waits: waitsForDriver},
		"EarlierNode":       {reason: "the CSINode belongs to a deleted node of this name", pod: []gen.PodOption{gen.UsesClaim("data")}, objects: with(bound, earlier, known), waits: waitsForDriver},
		"Unknown":           {reason: "the name of the driver can be wrong", pod: []gen.PodOption{gen.UsesClaim("data")}, objects: bound, waits: waitsForDriver + " (no CSIDriver object has this name)"},
		"Twice":             {reason: "the message names a driver once", pod: []gen.PodOption{gen.UsesClaim("data"), gen.UsesClaim("more")}, objects: with(bound, known, gen.Claim("more", gen.BoundToVolume("pv-1"))), waits: waitsForDriver},
		"OnlyOtherChecks":   {reason: "the check is off", args: only(defaults(), checkLimits), pod: []gen.PodOption{gen.UsesClaim("data")}, objects: with(bound, known)},
		"NotCSI":            {reason: "a local volume needs no driver", pod: []gen.PodOption{gen.UsesClaim("data")}, objects: []client.Object{bound[0], gen.Volume("pv-1")}},
		"Provisioned":       {reason: "the class names a driver that exists", pod: []gen.PodOption{gen.UsesClaim("data")}, objects: with(unbound, known), waits: waitsForDriver},
		"NoDriver":          {reason: "the provisioner never registers", pod: []gen.PodOption{gen.UsesClaim("data")}, objects: unbound},
		"NoClass":           {reason: "volumebinding handles missing classes", pod: []gen.PodOption{gen.UsesClaim("data")}, objects: []client.Object{unbound[0], known}},
		"Ephemeral":         {reason: "the claim does not exist yet", pod: []gen.PodOption{gen.EphemeralVolume("tmp", gen.OfClass("fast"))}, objects: []client.Object{unbound[1], known}, waits: waitsForDriver},
		"EphemeralBound":    {reason: "the claim counts", pod: []gen.PodOption{gen.EphemeralVolume("tmp", gen.OfClass("slow"))}, objects: []client.Object{gen.Claim("web-tmp", gen.BoundToVolume("pv-1")), bound[1], known}, waits: waitsForDriver},
		"Inline":            {reason: "an inline volume needs its driver", change: inline(driverName), objects: []client.Object{known}, waits: waitsForDriver},
		"InlineUnknown":     {reason: "the name of the driver can be wrong", change: inline("typo.example.com"), waits: "CSI driver typo.example.com to register on the node (no CSIDriver object has this name)"},
		"InTree":            {reason: "the node has migrated the plugin", pod: []gen.PodOption{gen.UsesClaim("data")}, objects: []client.Object{bound[0], inTree, gen.CSINode("node-a", "kubernetes.io/gce-pd"), gen.CSIDriver(gce, false)}, waits: "CSI driver " + gce + " to register on the node"},
		"InTreeVSphere":     {reason: "the kubelet migrates it, although kube-scheduler does not translate its volumes", pod: []gen.PodOption{gen.UsesClaim("data")}, objects: []client.Object{bound[0], vSphere, gen.CSINode("node-a", "kubernetes.io/vsphere-volume"), gen.CSIDriver("csi.vsphere.vmware.com", false)}, waits: "CSI driver csi.vsphere.vmware.com to register on the node"},
		"InTreeNotMigrated": {reason: "the node still runs the in-tree plugin", pod: []gen.PodOption{gen.UsesClaim("data")}, objects: []client.Object{bound[0], inTree, gen.CSINode("node-a", "")}},
		"InTreeClass": {
			reason: "the driver of the class replaces the plugin", pod: []gen.PodOption{gen.UsesClaim("data")},
			objects: []client.Object{unbound[0], gen.StorageClass("fast", "kubernetes.io/gce-pd"), gen.CSINode("node-a", "kubernetes.io/gce-pd"), gen.CSIDriver(gce, false)},
			waits:   "CSI driver " + gce + " to register on the node",
		},

		"Room": {reason: "the limit is not reached", pod: []gen.PodOption{gen.UsesClaim("data")}, objects: with(bound, csiNodeWith(theDriver(2)), attached("a", "node-a", "pv-2"), csiVolumeNamed("pv-2", "other"), attached("b", "node-b", "pv-3"), csiVolumeNamed("pv-3", "third"))},
		"Full": {
			reason: "the node has no room", pod: []gen.PodOption{gen.UsesClaim("data")}, objects: with(bound, csiNodeWith(theDriver(1)), attached("a", "node-a", "pv-2"), csiVolumeNamed("pv-2", "other")),
			waits:  "room on the node for volumes of CSI driver csi.example.com (1 more, 1 attached, limit 1)",
			object: framework.Object{Kind: "CSINode", Name: "node-a"},
		},
		"Leaked": {
			reason: "the attachment of a deleted volume can stay for ever", pod: []gen.PodOption{gen.UsesClaim("data")},
			objects: with(bound, csiNodeWith(theDriver(1)), attached("a", "node-a", "pv-2")),
		},
		"InlineAttached": {
			reason: "kube-scheduler does not count an attachment without a PersistentVolume", pod: []gen.PodOption{gen.UsesClaim("data")},
			objects: with(bound, csiNodeWith(theDriver(1)), inlineAttached),
		},
		"FullUnbound":     {reason: "a volume that does not exist yet needs room, too", pod: []gen.PodOption{gen.UsesClaim("data")}, objects: with(unbound, csiNodeWith(theDriver(0))), waits: "room on the node for volumes of CSI driver csi.example.com (1 more, 0 attached, limit 0)"},
		"AlreadyAttached": {reason: "the volume is attached to the node", pod: []gen.PodOption{gen.UsesClaim("data")}, objects: with(bound, csiNodeWith(theDriver(1)), attached("a", "node-a", "pv-1"))},
		"InlineNoRoom":    {reason: "inline volumes are not attached", change: inline(driverName), objects: []client.Object{csiNodeWith(theDriver(0))}},

		"AgentReady":       {reason: "the agent is ready", args: withAgent(""), objects: []client.Object{daemon("cni"), agentOn("node-a", "cni", true)}},
		"AgentNotReady":    {reason: "the agent is starting", args: withAgent(""), objects: []client.Object{daemon("cni"), agentOn("node-a", "cni", false)}, waits: podOfAgent, object: framework.Object{Kind: "DaemonSet", Namespace: network, Name: "cni"}},
		"AgentMissing":     {reason: "the pod does not exist yet", args: withAgent(""), objects: []client.Object{daemon("cni"), agentOn("node-b", "cni", true)}, waits: podOfAgent},
		"AgentTerminating": {reason: "the agent ends", args: withAgent(""), objects: []client.Object{daemon("cni"), agentOn("node-a", "cni", true, gen.Terminating())}, waits: podOfAgent},
		"AgentForged":      {reason: "the pod belongs to another DaemonSet", args: withAgent(""), objects: []client.Object{daemon("cni"), agentOn("node-a", "other", true)}, waits: podOfAgent},
		"AgentEarlierNode": {reason: "the pod was Ready on a deleted node of this name", args: withAgent(""), node: theNode(at("192.0.2.2", "node-a")), objects: []client.Object{daemon("cni"), hosted("192.0.2.1")}, waits: podOfAgent},
		"AgentAddresses":   {reason: "the kubelet reports one of the addresses", args: withAgent(""), node: theNode(at("node-a", "192.0.2.1", "2001:db8:0::1")), objects: []client.Object{daemon("cni"), hosted("2001:db8::1")}},
		"AgentNoAddress":   {reason: "the node has no IP address yet", args: withAgent(""), node: theNode(at("node-a")), objects: []client.Object{daemon("cni"), hosted("192.0.2.1")}},
		"AgentNoHostIP":    {reason: "the kubelet does not report the address", args: withAgent(""), node: theNode(at("192.0.2.1")), objects: []client.Object{daemon("cni"), hosted("")}},
		"AgentUnlabelled":  {reason: "the DaemonSet is not an agent", args: withAgent(""), objects: []client.Object{unlabelled}},
		"AgentOtherNodes":  {reason: "the operator excludes the node", args: withAgent("pool=cpu"), objects: []client.Object{daemon("cni")}},
		"AgentTheseNodes":  {reason: "the operator includes the node", args: withAgent("pool=gpu"), objects: []client.Object{daemon("cni")}, waits: podOfAgent},
		"AgentDeleted":     {reason: "the DaemonSet is being deleted", args: withAgent(""), objects: []client.Object{deleted}},
		"AgentOfTwo":       {reason: "each DaemonSet needs its own pod", args: withAgent(""), objects: []client.Object{daemon("cni"), daemon("old"), agentOn("node-a", "old", true)}, waits: podOfAgent},

		"Condition":        {reason: "the condition holds", args: withConditions("GPUReady"), node: theNode(reports("GPUReady", "True"))},
		"ConditionFalse":   {reason: "the condition does not hold", args: withConditions("GPUReady"), node: theNode(reports("GPUReady", "False")), waits: `the node condition GPUReady to be True (it is False)`, object: framework.Object{Kind: "Node", Name: "node-a"}},
		"ConditionMissing": {reason: "the condition is not reported", args: withConditions("Repair=False"), waits: "the node condition Repair to be False (it is not set)"},

		"Resource": {reason: "the node has enough", change: requests(gpu, "2"), node: theNode(offers(gpu, "2"))},
		"ResourceSidecar": {
			reason: "a sidecar adds to the request", node: theNode(offers(gpu, "2")), waits: "extended resource gpu.example.com/card on the node (3 requested, 2 allocatable)",
			change: func(pod *corev1.Pod) { requests(gpu, "2")(pod); sidecar(gpu, "1")(pod) },
		},
		"ResourceServed":  {reason: "DRA serves the resource", change: func(pod *corev1.Pod) { requests(gpu, "2")(pod); served(gpu)(pod) }},
		"ResourceNative":  {reason: "kube-scheduler has checked it", change: requests(corev1.ResourceHugePagesPrefix+"2Mi", "2Mi")},
		"ResourcePrefix":  {reason: "the name is not of an extended resource", change: requests("example.kubernetes.io/x", "1")},
		"ResourceZero":    {reason: "the pod requests nothing", change: requests(gpu, "0")},
		"ResourcesOff":    {reason: "the check is off", args: only(defaults(), checkAgents), change: requests(gpu, "2")},
		"PassesNamespace": {reason: "the namespace is exempt", pod: []gen.PodOption{gen.InNamespace("kube-system")}, change: requests(gpu, "2")},
		"PassesAgents":    {reason: "agents start in this namespace", args: withAgent(""), pod: []gen.PodOption{gen.InNamespace(network)}, change: requests(gpu, "2")},
		"PassesDaemon":    {reason: "agents can depend on the pod", pod: []gen.PodOption{gen.OwnedBy("DaemonSet", "ds", "1")}, change: requests(gpu, "2")},
		"PassesOnlyDaemon": {
			reason: "a Deployment can wait", pod: []gen.PodOption{gen.OwnedBy("ReplicaSet", "rs", "1")}, change: requests(gpu, "2"),
			waits: "extended resource gpu.example.com/card on the node (2 requested, 0 allocatable)",
		},
		"PassesMirror":  {reason: "a static pod is already running", pod: []gen.PodOption{gen.Annotation(corev1.MirrorPodAnnotationKey, "x")}, change: requests(gpu, "2")},
		"PassesNode":    {reason: "the node depends on the pod", change: func(pod *corev1.Pod) { requests(gpu, "2")(pod); pod.Spec.PriorityClassName = "system-node-critical" }},
		"PassesInvalid": {reason: "the pod does not wait", pod: []gen.PodOption{gen.InNamespace("kube-system"), gen.Annotation("node-ready.prebind.dev/timeout", "x")}},

		"Several": {
			reason: "the message is bounded, and begins with the first check", args: withConditions("A", "B", "C"), pod: []gen.PodOption{gen.UsesClaim("data")}, objects: with(bound, known),
			waits:  waitsForDriver + ", the node condition A to be True (it is not set), the node condition B to be True (it is not set), and 1 more",
			object: framework.Object{Kind: "CSINode", Name: "node-a"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pod, node := gen.Pod("web", append([]gen.PodOption{gen.UID("web")}, tc.pod...)...), tc.node
			if tc.change != nil {
				tc.change(pod)
			}
			if node == nil {
				node = theNode()
			}
			c := cluster(t, tc.args, append(tc.objects, pod, node)...)
			verdict, err := c.PreFlight(t.Context(), c.Context(pod, node))
			require.NoError(t, err)
			assert.Equal(t, tc.waits, verdict.Wait.For, tc.reason)
			if tc.object != (framework.Object{}) {
				assert.Equal(t, tc.object, verdict.Wait.Object, tc.reason)
				assert.True(t, verdict.Wait.First, "no volume is provisioned for the node yet")
			}
		})
	}
}

// The cases follow TestNodeShouldRunDaemonPod of k8s.io/kubernetes/pkg/controller/daemon.
func TestShouldRun(t *testing.T) {
	cases := map[string]struct {
		reason string
		node   func(*corev1.Node)
		ds     func(*corev1.PodSpec)
		want   bool
	}{
		"Plain":          {reason: "a DaemonSet runs on all nodes", want: true},
		"NodeName":       {reason: "the template names the node", ds: func(s *corev1.PodSpec) { s.NodeName = "node-a" }, want: true},
		"OtherNode":      {reason: "the template names another node", ds: func(s *corev1.PodSpec) { s.NodeName = "node-b" }},
		"OtherSelector":  {reason: "the selector does not match", ds: func(s *corev1.PodSpec) { s.NodeSelector = map[string]string{"pool": "cpu"} }},
		"OtherAffinity":  {reason: "the affinity does not match", ds: requires("pool", "cpu")},
		"BadAffinity":    {reason: "an invalid affinity does not match", ds: requires("pool/a/b", "gpu")},
		"Taint":          {reason: "the pods do not tolerate the taint", node: tainted("reserved", corev1.TaintEffectNoSchedule)},
		"TaintNoExecute": {reason: "the pods do not tolerate the taint", node: tainted("reserved", corev1.TaintEffectNoExecute)},
		"TaintPrefer":    {reason: "the taint is a preference", node: tainted("reserved", corev1.TaintEffectPreferNoSchedule), want: true},
		"Tolerated": {reason: "the pods tolerate the taint", node: tainted("reserved", corev1.TaintEffectNoSchedule), want: true, ds: func(s *corev1.PodSpec) {
			s.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		}},
		"NotReady":           {reason: "the controller adds the toleration", node: tainted(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute), want: true},
		"NotReadyNoSchedule": {reason: "the controller adds the toleration for NoExecute only", node: tainted(corev1.TaintNodeNotReady, corev1.TaintEffectNoSchedule)},
		"Unreachable":        {reason: "the controller adds the toleration", node: tainted(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute), want: true},
		"DiskPressure":       {reason: "the controller adds the toleration", node: tainted(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule), want: true},
		"MemoryPressure":     {reason: "the controller adds the toleration", node: tainted(corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule), want: true},
		"PIDPressure":        {reason: "the controller adds the toleration", node: tainted(corev1.TaintNodePIDPressure, corev1.TaintEffectNoSchedule), want: true},
		"Unschedulable":      {reason: "the controller adds the toleration", node: tainted(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule), want: true},
		"UnschedulableExec":  {reason: "the controller adds the toleration for NoSchedule only", node: tainted(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoExecute)},
		"NetworkUnavailable": {reason: "the pods need the network", node: tainted(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule)},
		"NetworkOfTheHost":   {reason: "the pods use the network of the host", node: tainted(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule), ds: func(s *corev1.PodSpec) { s.HostNetwork = true }, want: true},
		"ComparisonTolerated": {reason: "the API server rejects such pods without the feature gate", node: func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "level", Value: "2", Effect: corev1.TaintEffectNoSchedule}}
		}, want: true, ds: func(s *corev1.PodSpec) {
			s.Tolerations = []corev1.Toleration{{Key: "level", Operator: corev1.TolerationOpGt, Value: "1"}}
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			node, ds := theNode(), daemon("cni")
			if tc.node != nil {
				tc.node(node)
			}
			if tc.ds != nil {
				tc.ds(&ds.Spec.Template.Spec)
			}
			assert.Equal(t, tc.want, shouldRun(ds, node), tc.reason)
		})
	}
}

func requires(key, value string) func(*corev1.PodSpec) {
	return func(s *corev1.PodSpec) {
		s.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}}}},
		}}}
	}
}

// Their watches can be late. The limit of the plugin does not count.
func TestPreFlight_NotCached(t *testing.T) {
	for name, object := range map[string]client.Object{"claim": csiVolumeNamed("pv-1", "data"), "volume": gen.Claim("data", gen.BoundToVolume("pv-1"))} {
		pod, node := gen.Pod("web", gen.UsesClaim("data")), theNode()
		c := cluster(t, nil, pod, node, object)
		bc := c.Context(pod, node)
		bc.Since = bc.Now.Add(-time.Hour)
		_, err := c.PreFlight(t.Context(), bc)
		assert.True(t, frameworktest.IsKind(err, framework.KindWait), "%s: %v", name, err)
	}
}

func TestPreFlight_InvalidTimeout(t *testing.T) {
	for _, value := range []string{"soon", "0s", "-1m"} {
		pod, node := gen.Pod("web", gen.Annotation("node-ready.prebind.dev/timeout", value)), theNode()
		c := cluster(t, nil, pod, node)
		_, err := c.PreFlight(t.Context(), c.Context(pod, node))
		assert.True(t, frameworktest.IsKind(err, framework.KindInvalid), "%s: %v", value, err)
		assert.ErrorContains(t, err, `annotation node-ready.prebind.dev/timeout must be a positive duration such as 5m, got "`+value+`"`)
	}
}

// Each object wakes the wait when it changes.
func TestWait_EndsWhenTheNodeIsReady(t *testing.T) {
	bound := []client.Object{gen.Claim("data", gen.BoundToVolume("pv-1")), csiVolumeNamed("pv-1", "data")}
	full, other := attached("a", "node-a", "pv-2"), csiVolumeNamed("pv-2", "other")
	cases := map[string]struct {
		args   *Arguments
		change func(*corev1.Pod)
		before []client.Object
		ready  func(c *frameworktest.Cluster)
	}{
		"Driver":  {before: []client.Object{csiNodeWith()}, ready: func(c *frameworktest.Cluster) { c.Put(csiNodeWith(theDriver())) }},
		"CSINode": {ready: func(c *frameworktest.Cluster) { c.Put(csiNodeWith(theDriver())) }},
		"Room":    {before: []client.Object{csiNodeWith(theDriver(1)), full, other}, ready: func(c *frameworktest.Cluster) { c.Remove(full) }},
		"Deleted": {before: []client.Object{csiNodeWith(theDriver(1)), full, other}, ready: func(c *frameworktest.Cluster) { c.Remove(other) }},
		"Agent":   {args: withAgent(""), before: []client.Object{csiNodeWith(theDriver()), daemon("cni"), agentOn("node-a", "cni", false)}, ready: func(c *frameworktest.Cluster) { c.Put(agentOn("node-a", "cni", true)) }},
		"DaemonSet": {args: withAgent(""), before: []client.Object{csiNodeWith(theDriver()), daemon("cni")}, ready: func(c *frameworktest.Cluster) {
			c.Put(daemon("cni", func(s *corev1.PodSpec) { s.NodeName = "node-b" }))
		}},
		"Condition": {args: withConditions("GPUReady"), before: []client.Object{csiNodeWith(theDriver())}, ready: func(c *frameworktest.Cluster) { c.Put(theNode(reports("GPUReady", "True"))) }},
		"Resource":  {change: requests(gpu, "1"), before: []client.Object{csiNodeWith(theDriver())}, ready: func(c *frameworktest.Cluster) { c.Put(theNode(offers(gpu, "1"))) }},
		"Served": {change: requests(gpu, "1"), before: []client.Object{csiNodeWith(theDriver())}, ready: func(c *frameworktest.Cluster) {
			pod := gen.Pod("web", gen.UID("web"), gen.UsesClaim("data"))
			requests(gpu, "1")(pod)
			served(gpu)(pod)
			c.Put(pod)
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pod, node := gen.Pod("web", gen.UID("web"), gen.UsesClaim("data")), theNode()
				if tc.change != nil {
					tc.change(pod)
				}
				objects := append([]client.Object{pod, node, gen.CSIDriver(driverName, false)}, bound...)
				c := cluster(t, tc.args, append(objects, tc.before...)...)
				bind := frameworktest.Start(func() error { return errorOf(c.Post(t.Context(), pod, node.Name)) })
				ended, err := bind.Ended()
				require.False(t, ended, "%v", err)
				began := time.Now()
				tc.ready(c)
				ended, err = bind.Ended()
				if !ended { // The pace of passes.
					<-time.After(20 * time.Millisecond)
					ended, err = bind.Ended()
				}
				require.True(t, ended)
				require.NoError(t, err)
				assert.LessOrEqual(t, time.Since(began), 20*time.Millisecond)
			})
		})
	}
}

func TestWait_TimesOut(t *testing.T) {
	cases := map[string]struct {
		reason     string
		annotation string
		after      time.Duration
	}{
		"Default": {reason: "the operator sets the limit", after: 2 * time.Minute},
		"Longer":  {reason: "the pod needs more time", annotation: "5m", after: 5 * time.Minute},
		"Shorter": {reason: "the pod prefers another node", annotation: "10s", after: 10 * time.Second},
		"Capped":  {reason: "the operator sets the maximum", annotation: "5h", after: 10 * time.Minute},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pod, node := gen.Pod("web", gen.UID("web")), theNode()
				if tc.annotation != "" {
					pod.Annotations = map[string]string{"node-ready.prebind.dev/timeout": tc.annotation}
				}
				requests(gpu, "1")(pod)
				c := cluster(t, nil, pod, node)
				bind := frameworktest.Start(func() error { return errorOf(c.Post(t.Context(), pod, node.Name)) })
				<-time.After(tc.after + binder.Settle - time.Nanosecond)
				ended, err := bind.Ended()
				require.False(t, ended, "%s: %v", tc.reason, err)
				<-time.After(time.Nanosecond)
				ended, err = bind.Ended()
				require.True(t, ended, tc.reason)
				assert.True(t, frameworktest.IsKind(err, framework.KindRefuse))
				assert.EqualError(t, err, "node-ready: Node node-a: still waiting for extended resource gpu.example.com/card on the node (1 requested, 0 allocatable) after "+
					tc.after.String()+"; choose another node")
			})
		})
	}
}
