// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"path/filepath"
)

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
