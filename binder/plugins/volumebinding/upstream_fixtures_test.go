// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

// The upstream_*_test.go files run the test cases of kube-scheduler's VolumeBinding (Kubernetes
// v1.36.3, pkg/scheduler/framework/plugins/volumebinding, binder_test.go) on this plugin. Each case
// has the name and the objects of the upstream case. If the expected result differs from upstream,
// the case explains the difference.

// upstream contains the fields of every case.
type upstream struct {
	// want is the kind of the error. It is empty if there is no error.
	want framework.Kind
	// says is a part of the error.
	says string
	// differs explains the difference from kube-scheduler. It is empty if there is none.
	differs string
}

func (u upstream) check(t *testing.T, err error) {
	t.Helper()
	if u.want == "" {
		require.NoError(t, err, u.differs)
		return
	}
	require.Error(t, err, u.differs)
	assert.Equal(t, u.want, framework.AsError(Name, err).Kind, "%v", err)
	assert.ErrorContains(t, err, u.says)
}

const refuse = framework.KindRefuse

// Names and sizes of the upstream objects.
const (
	waitClass        = "waitClass"
	immediateClass   = "immediateClass"
	provisionerClass = "waitClassWithProvisioner"
	topoClass        = "topoMismatchClass"
	nodeKey          = "nodeKey"
	testProvisioner  = "test-provisioner"
)

func upstreamClasses() []client.Object {
	return []client.Object{
		gen.StorageClass(provisionerClass, testProvisioner, gen.AllowedTopology(nodeKey, "node1", "reference-value")),
		gen.StorageClass(immediateClass, "", gen.Immediate()),
		gen.StorageClass(waitClass, volume.NotSupportedProvisioner),
		gen.StorageClass(topoClass, testProvisioner, gen.AllowedTopology(nodeKey, "reference-value")),
	}
}

func upClaim(name, size, class string, options ...gen.ClaimOption) *corev1.PersistentVolumeClaim {
	return gen.Claim(name, append([]gen.ClaimOption{
		gen.UID(types.UID("uid-" + name)), gen.Version("1"), gen.Requests(size), gen.OfClass(class),
	}, options...)...)
}

func upVolume(name, node, size, class string, options ...gen.VolumeOption) *corev1.PersistentVolume {
	return gen.Volume(name, append([]gen.VolumeOption{
		gen.Version("1"), gen.OnNodesWith(nodeKey, node), gen.Capacity(size), gen.VolumeOfClass(class),
	}, options...)...)
}

// ownedBy sets the claimRef of a volume to the claim.
func ownedBy(claim *corev1.PersistentVolumeClaim) gen.VolumeOption { return gen.ClaimRef(claim) }

var (
	node1  = gen.Node("node1", gen.Label(nodeKey, "node1"))
	chosen = gen.SelectedNode("node1")

	unboundPVC       = upClaim("unbound-pvc", "1G", waitClass)
	unboundPVC2      = upClaim("unbound-pvc2", "5G", waitClass)
	preboundPVC      = upClaim("prebound-pvc", "1G", waitClass, gen.NamesVolume("pv-node1a"))
	boundPVC         = upClaim("bound-pvc", "1G", waitClass, gen.BoundToVolume("pv-bound"))
	immediateUnbound = upClaim("immediate-unbound-pvc", "1G", immediateClass)
	immediateBound   = upClaim("immediate-bound-pvc", "1G", immediateClass, gen.BoundToVolume("pv-bound-immediate"))

	provisionedPVC   = upClaim("provisioned-pvc", "1Gi", provisionerClass)
	selectedNodePVC  = upClaim("provisioned-pvc", "1Gi", provisionerClass, chosen)
	noProvisionerPVC = upClaim("no-provisioner-pvc", "1Gi", waitClass)
	topoMismatchPVC  = upClaim("topo-mismatch-pvc", "1Gi", topoClass)

	pvNode1a         = upVolume("pv-node1a", "node1", "5G", waitClass)
	pvNode1b         = upVolume("pv-node1b", "node1", "10G", waitClass)
	pvNode2          = upVolume("pv-node2", "node2", "1G", waitClass)
	pvBound          = upVolume("pv-bound", "node1", "1G", waitClass, ownedBy(boundPVC))
	pvNode1aBound    = upVolume("pv-node1a", "node1", "5G", waitClass, ownedBy(unboundPVC))
	pvBoundImmediate = upVolume("pv-bound-immediate", "node1", "1G", immediateClass, ownedBy(immediateBound))
	pvImmediateNode2 = upVolume("pv-bound-immediate", "node2", "1G", immediateClass, ownedBy(immediateBound))
)

// Objects for CSI migration.
var (
	gceSource = corev1.PersistentVolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "test-disk", FSType: "ext4"}}
)

// testPod returns the upstream pod with these claims.
func testPod(claims ...*corev1.PersistentVolumeClaim) *corev1.Pod {
	options := []gen.PodOption{gen.UID("test-pod")}
	for _, claim := range claims {
		options = append(options, gen.UsesClaim(claim.Name))
	}
	return gen.Pod("test-pod", options...)
}

// worldOf returns a world with these objects and the upstream classes.
func worldOf(objects ...client.Object) *world {
	return newWorld(append(objects, upstreamClasses()...)...)
}

func list[T client.Object](some ...T) []client.Object {
	var objects []client.Object
	for _, o := range some {
		objects = append(objects, o)
	}
	return objects
}

// drivers contains the three drivers of the upstream tables.
func drivers() map[string]*storagev1.CSIDriver {
	return map[string]*storagev1.CSIDriver{
		"no CSIDriver":                        nil,
		"CSIDriver with capacity tracking":    gen.CSIDriver(testProvisioner, true),
		"CSIDriver without capacity tracking": gen.CSIDriver(testProvisioner, false),
	}
}
