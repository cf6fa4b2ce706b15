// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// CSITopologyKey is the label of nodes with their zone, as drivers of [Cluster.StartCSI] register it.
const CSITopologyKey = "topology.csi.prebind.dev/zone"

const (
	csiProvisionerUser = "prebind-test-csi-provisioner"
	// csiCapacityNamespace is the namespace of the CSIStorageCapacity objects.
	csiCapacityNamespace = metav1.NamespaceSystem
)

var (
	csiDriver = program{module: "csi", modFile: "go.mod", pkg: "."}
	// csiProvisioner is built in the module test/csi, which pins its version.
	csiProvisioner = program{module: "csi", modFile: "go.mod", pkg: "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner"}
)

// CSI is a CSI driver with its external-provisioner, see [Cluster.StartCSI].
type CSI struct {
	// Driver and Provisioner are the two processes. The provisioner exits when it loses the connection to the driver. The driver
	// forgets its volumes when it exits.
	Driver, Provisioner *Process

	name   string
	client kubernetes.Interface
}

// StartCSI starts a CSI driver with this name, and an unmodified external-provisioner for it, and returns when both serve. The
// caller stops them before the cluster. It also creates the CSIDriver object, with storageCapacity. The first call on a machine builds both, which
// takes minutes; ctx limits it. The provisioner publishes CSIStorageCapacity objects for each class and zone. Nodes must be registered,
// see [CSI.Register]. zones are the bytes of storage in each zone.
//
// The driver is simple, but follows the specification. It creates each volume at once. The parameter failZone of a StorageClass is a zone
// in which the creation fails, because the storage is exhausted: the selected node is removed.
func (c *Cluster) StartCSI(ctx context.Context, driver string, zones map[string]int64) (*CSI, error) {
	s, err := c.newCSI(ctx, driver, zones)
	if err != nil {
		return nil, fmt.Errorf("start CSI driver %s: %w", driver, err)
	}
	for _, process := range []*Process{s.Driver, s.Provisioner} {
		if err := process.Run(ctx); err != nil {
			return nil, errors.Join(fmt.Errorf("start CSI driver %s: %w", driver, err), s.Stop())
		}
	}
	return s, nil
}

// newCSI prepares everything that the processes find when they start.
func (c *Cluster) newCSI(ctx context.Context, driver string, zones map[string]int64) (*CSI, error) {
	driverBinary, err := csiDriver.binary(ctx, c.o.Out)
	if err != nil {
		return nil, err
	}
	provisionerBinary, err := csiProvisioner.binary(ctx, c.o.Out)
	if err != nil {
		return nil, err
	}
	if err := prepareCSI(ctx, c.client, driver); err != nil {
		return nil, err
	}
	kubeconfig, err := c.userKubeconfig("csi-provisioner", csiProvisionerUser)
	if err != nil {
		return nil, err
	}
	provisionerAddress, err := c.ReserveAddress(ctx)
	if err != nil {
		return nil, err
	}
	s := &CSI{name: driver, client: c.client}
	socket := c.file(driver + ".sock")
	args := []string{"--driver=" + driver, "--topology-key=" + CSITopologyKey, "--csi-address=" + socket}
	for zone, bytes := range zones {
		args = append(args, fmt.Sprintf("--zones=%s=%d", zone, bytes))
	}
	s.Driver = NewProcess(ProcessOptions{
		Name:    "csi-driver " + driver,
		Path:    driverBinary,
		Args:    args,
		LogFile: c.file(filepath.Join("logs", "csi-driver-"+driver+".log")),
		Health: func(context.Context) error {
			_, err := os.Stat(socket)
			return err
		},
	})
	s.Provisioner = NewProcess(ProcessOptions{
		Name: "csi-provisioner " + driver,
		Path: provisionerBinary,
		Args: []string{
			"--csi-address=" + socket,
			"--http-endpoint=" + provisionerAddress,
			"--retry-interval-max=5s",
			"--enable-capacity",
			// Unlike new volumes, deleted ones are considered at the next poll. The default is a minute.
			"--capacity-poll-interval=5s",
			// No pod can own the objects. They are removed with the cluster.
			"--capacity-ownerref-level=-1",
			"--capacity-threads=4",
			// The default limits are so low that tests would wait for them.
			"--kube-api-qps=200", "--kube-api-burst=400",
			"--kube-api-capacity-qps=200", "--kube-api-capacity-burst=400",
			"--v=5",
		},
		// KUBECONFIG of the user would override a flag.
		Env:     []string{"KUBECONFIG=" + kubeconfig, "NAMESPACE=" + csiCapacityNamespace},
		LogFile: c.file(filepath.Join("logs", "csi-provisioner-"+driver+".log")),
		Health:  c.serves("http://" + provisionerAddress + "/metrics"),
	})
	return s, nil
}

// prepareCSI grants the permissions that external-provisioner documents, and creates the CSIDriver.
func prepareCSI(ctx context.Context, client kubernetes.Interface, driver string) error {
	err := grant(ctx, client, csiProvisionerUser,
		rule("", "persistentvolumes", "get", "list", "watch", "create", "patch", "delete"),
		rule("", "persistentvolumeclaims", "get", "list", "watch", "update"),
		rule("", "nodes", "get", "list", "watch"),
		rule("", "events", "list", "watch", "create", "update", "patch"),
		rule("storage.k8s.io", "storageclasses", "get", "list", "watch"),
		rule("storage.k8s.io", "csinodes", "get", "list", "watch"),
		rule("storage.k8s.io", "csistoragecapacities", "get", "list", "watch", "create", "update", "patch", "delete"),
	)
	if err != nil {
		return err
	}
	return createDriver(ctx, client, driver, true)
}

// Stop stops the provisioner first, because it exits with an error when its driver does. It returns an error if one of them had ended by
// itself.
func (s *CSI) Stop() error {
	return errors.Join(s.Provisioner.Err(), s.Driver.Err(), s.Provisioner.Stop(), s.Driver.Stop())
}

// Register does what the kubelet does for a node on which the driver runs: it labels the node with the zone, and adds the driver to its
// CSINode.
func (s *CSI) Register(ctx context.Context, node, zone string) error {
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, CSITopologyKey, zone)
	labeled, err := s.client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("label node %s with its zone: %w", node, err)
	}
	driver := storagev1.CSINodeDriver{Name: s.name, NodeID: node, TopologyKeys: []string{CSITopologyKey}}
	api := s.client.StorageV1().CSINodes()
	_, err = api.Create(ctx, &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{
			Name:            node,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(labeled, corev1.SchemeGroupVersion.WithKind("Node"))},
		},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{driver}},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create the CSINode of node %s: %w", node, err)
	}
	return nil
}

// running returns all processes, in the order of their start.
func (c *Cluster) running() []*Process {
	var out []*Process
	for _, component := range c.o.components() {
		if process := c.processes[component]; process != nil {
			out = append(out, process)
		}
	}
	return out
}

// CertManager is the name of the binary and the log of [Cluster.StartCertManager].
const CertManager = "cert-manager"

var certManager = program{module: "certmanager", modFile: "go.mod", pkg: "."}

// StartCertManager starts cert-manager from test/certmanager, and waits until it is ready.
// It builds the binary unless it is cached. The CustomResourceDefinitions of cert-manager must exist. cert-manager has all
// permissions. The caller stops the process before the cluster.
func (c *Cluster) StartCertManager(ctx context.Context) (*Process, error) {
	path, err := certManager.binary(ctx, c.o.Out)
	if err != nil {
		return nil, err
	}
	kubeconfig, err := c.userKubeconfig(CertManager, CertManager, "system:masters")
	if err != nil {
		return nil, err
	}
	address, err := c.ReserveAddress(ctx)
	if err != nil {
		return nil, err
	}
	process := NewProcess(ProcessOptions{
		Name:    CertManager,
		Path:    path,
		Args:    []string{"--kubeconfig=" + kubeconfig, "--health-bind-address=" + address},
		LogFile: c.file(filepath.Join("logs", CertManager+".log")),
		Health:  c.serves("http://" + address + "/readyz"),
	})
	return process, process.Run(ctx)
}
