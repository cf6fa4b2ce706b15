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
	"runtime"
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

// AssetsEnv names a folder with the control plane's binaries, to be used in place
// of building them; controller-runtime's envtest reads the same variable.
const AssetsEnv = "KUBEBUILDER_ASSETS"

// CacheEnv names the folder to keep built binaries in, in place of the folder
// prebind in the user's cache folder.
const CacheEnv = "PREBIND_CACHE_DIR"

// Assets are the absolute paths of the control plane's binaries.
type Assets struct {
	Etcd, APIServer, ControllerManager, Scheduler, Provisioner, Kwok, Kubectl string
}

// path returns the path of the component's binary.
func (a Assets) path(component string) string {
	switch component {
	case Etcd:
		return a.Etcd
	case APIServer:
		return a.APIServer
	case ControllerManager:
		return a.ControllerManager
	case Scheduler:
		return a.Scheduler
	case Provisioner:
		return a.Provisioner
	case Kwok:
		return a.Kwok
	case Kubectl:
		return a.Kubectl
	}
	return ""
}

// check returns an error that names the first of the components that is not there.
func (a Assets) check(components ...string) error {
	for _, component := range components {
		path := a.path(component)
		if path == "" {
			return fmt.Errorf("find %s: no path is set for it in Assets", component)
		}
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("find %s: %w: put it there, or unset %s to have everything built from source",
				component, err, AssetsEnv)
		}
	}
	return nil
}

// Binaries returns the control plane's binaries, and builds them if need be.
//
// If KUBEBUILDER_ASSETS is set they are taken from that folder, except where
// TEST_ASSET_ETCD, TEST_ASSET_KUBE_APISERVER, TEST_ASSET_KUBE_CONTROLLER_MANAGER,
// TEST_ASSET_KUBE_SCHEDULER or TEST_ASSET_KUBECTL names a file; only the test
// provisioner, kwok, cert-manager and the binaries of [Cluster.StartCSI] are built. Otherwise all of them are built from the Go modules
// that test/controlplane, test/kwok, test/certmanager and test/csi name and kept in the user's cache folder
// (PREBIND_CACHE_DIR overrides it) until those sources, the Go version or the
// platform change. Building takes minutes, needs go on the PATH and, the first
// time, the Go module proxy.
//
// The version is a minor version of Kubernetes, such as 1.34; empty is that in PREBIND_TEST_KUBERNETES, or else that of
// test/controlplane. For another version, kube-apiserver, kube-controller-manager and kube-scheduler are built from
// test/kubernetes; the other binaries are the same for all versions.
//
// Progress goes to progress, which may be nil: lines for a human to read. Calls
// may run at once, in one process or in several: one builds, the others wait.
// The binaries stay in place at least until this process ends.
func Binaries(ctx context.Context, progress io.Writer, version string) (Assets, error) {
	if progress == nil {
		progress = io.Discard
	}
	assets, err := binaries(ctx, progress, version, true, true)
	if err != nil {
		return Assets{}, err
	}
	// Only tests that start these need them. Build them here, because go test shows no progress.
	if _, _, err := csiBinaries(ctx, progress); err != nil {
		return Assets{}, err
	}
	if _, err := certManager(ctx, progress); err != nil {
		return Assets{}, err
	}
	return assets, assets.check(Etcd, APIServer, ControllerManager, Scheduler, Provisioner, Kwok, Kubectl)
}

// binaries is Binaries without the check that all are there, and without those of our own that are not needed.
func binaries(ctx context.Context, progress io.Writer, version string, provisioner, kwok bool) (Assets, error) {
	other, needed, err := selectVersion(version)
	if err != nil {
		return Assets{}, err
	}
	assets, err := controlPlane(ctx, progress, provisioner)
	if err == nil && needed {
		err = assets.replace(ctx, progress, other)
	}
	if err != nil || !kwok {
		return assets, err
	}
	own, err := cachedBuild(ctx, progress, kwokSource, ".", Kwok)
	assets.Kwok = executable(own, Kwok)
	return assets, err
}

// controlPlane returns the binaries that test/controlplane contains.
func controlPlane(ctx context.Context, progress io.Writer, provisioner bool) (Assets, error) {
	given := os.Getenv(AssetsEnv)
	if given == "" {
		dir, err := cachedBuild(ctx, progress, controlPlaneSource, ".", multiplexer)
		return assetsIn(dir), err
	}
	dir, err := filepath.Abs(given)
	if err != nil {
		return Assets{}, fmt.Errorf("read %s: %w", AssetsEnv, err)
	}
	assets := assetsIn(dir)
	for _, override := range []struct {
		path *string
		env  string
	}{
		{&assets.Etcd, "TEST_ASSET_ETCD"},
		{&assets.APIServer, "TEST_ASSET_KUBE_APISERVER"},
		{&assets.ControllerManager, "TEST_ASSET_KUBE_CONTROLLER_MANAGER"},
		{&assets.Scheduler, "TEST_ASSET_KUBE_SCHEDULER"},
		{&assets.Kubectl, "TEST_ASSET_KUBECTL"},
	} {
		if value := os.Getenv(override.env); value != "" {
			*override.path = value
		}
	}
	if !provisioner {
		return assets, nil
	}
	own, err := cachedBuild(ctx, progress, controlPlaneSource, "./cmd/"+Provisioner, Provisioner)
	assets.Provisioner = executable(own, Provisioner)
	return assets, err
}

func assetsIn(dir string) Assets {
	return Assets{
		Etcd:              executable(dir, Etcd),
		APIServer:         executable(dir, APIServer),
		ControllerManager: executable(dir, ControllerManager),
		Scheduler:         executable(dir, Scheduler),
		Provisioner:       executable(dir, Provisioner),
		Kubectl:           executable(dir, Kubectl),
	}
}

func executable(dir, name string) string {
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	return filepath.Join(dir, name)
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
