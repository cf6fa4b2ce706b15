// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// The components' names: of their binaries, of their logs, and as arguments of
// [Cluster.Process] and keys of [Options.ExtraArgs].
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Provisioner       = "test-provisioner"
	Kwok              = "kwok"
	Kubectl           = "kubectl"
)

// multiplexer is our own binary, which is any component but kwok by the name it has.
const multiplexer = "controlplane"

// contents are the components that one binary contains.
var contents = map[string][]string{
	multiplexer: {Etcd, APIServer, ControllerManager, Scheduler, Provisioner, Kubectl},
	versioned:   {APIServer, ControllerManager, Scheduler},
}

// CacheEnv names the folder to keep built binaries in, in place of the folder
// prebind in the user's cache folder.
const CacheEnv = "PREBIND_CACHE_DIR"

// assets are the absolute paths of the control plane's binaries, by component.
type assets map[string]string

// add adds the components of a build.
func (a assets) add(dir string, components ...string) {
	for _, c := range components {
		a[c] = filepath.Join(dir, c)
	}
}

// Build builds all binaries that are not cached, from the Go modules that test/controlplane, test/kwok, test/certmanager and test/csi
// name, and keeps them in the user's cache folder (PREBIND_CACHE_DIR overrides it). Building takes minutes, needs go on the PATH and, the
// first time, the Go module proxy. Lines for a human go to progress. Calls may run at once, in one process or in several: one builds, the
// others wait.
//
// PREBIND_TEST_KUBERNETES selects a minor version of Kubernetes, such as 1.34; by default it is that of test/controlplane. For another
// version, kube-apiserver, kube-controller-manager and kube-scheduler are built from test/kubernetes; the other binaries are the same
// for all versions.
func Build(ctx context.Context, progress io.Writer) error {
	if _, err := binaries(ctx, progress, true); err != nil {
		return err
	}
	// Only tests that start these need them. Build them here, because go test shows no progress.
	if _, _, err := csiBinaries(ctx, progress); err != nil {
		return err
	}
	_, err := certManager(ctx, progress)
	return err
}

// binaries returns the binaries of the control plane, and builds them if need be.
func binaries(ctx context.Context, progress io.Writer, kwok bool) (assets, error) {
	other, needed, err := selectVersion()
	if err != nil {
		return nil, err
	}
	found := assets{}
	dir, err := cachedBuild(ctx, progress, controlPlaneSource, ".", multiplexer)
	if err != nil {
		return nil, err
	}
	found.add(dir, contents[multiplexer]...)
	if needed {
		if dir, err = cachedBuild(ctx, progress, other, ".", versioned); err != nil {
			return nil, err
		}
		found.add(dir, contents[versioned]...)
	}
	if kwok {
		if dir, err = cachedBuild(ctx, progress, kwokSource, ".", Kwok); err != nil {
			return nil, err
		}
		found.add(dir, Kwok)
	}
	return found, nil
}

// CacheDir returns the directory for binaries and other files that are kept between runs.
func CacheDir() (string, error) {
	if dir := os.Getenv(CacheEnv); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", errors.Join(fmt.Errorf("find a folder to cache binaries in: set %s", CacheEnv), err)
	}
	return filepath.Join(dir, "prebind"), nil
}
