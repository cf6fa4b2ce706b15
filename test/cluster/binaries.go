// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
)

// The components' names: of their binaries, of their logs, and as arguments of
// [Cluster.Process] and keys of [Options.ExtraArgs].
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	OtherAPIServer    = "other-kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	SecondScheduler   = "second-scheduler"
	Provisioner       = "test-provisioner"
	Kwok              = "kwok"
	Kubectl           = "kubectl"
)

// VersionEnv names the variable with the minor version of Kubernetes to run, such as 1.34.
const VersionEnv = "PREBIND_TEST_KUBERNETES"

// program is a main package of a module in test.
type program struct {
	// module is the folder of the module, and modFile its file with the requirements.
	module, modFile string
	// pkg is the package, as an argument of the go command in the folder.
	pkg string
	// kubernetes is set if the program reports the version of Kubernetes, which the linker has to set.
	kubernetes bool
}

// controlPlane is every component. Its first argument selects the component.
var controlPlane = program{module: "controlplane", modFile: "go.mod", pkg: ".", kubernetes: true}

// otherKubernetes returns the program that contains kube-apiserver, kube-controller-manager and kube-scheduler of another version.
func otherKubernetes(version string) program {
	return program{module: "kubernetes", modFile: version + ".mod", pkg: ".", kubernetes: true}
}

// paths contains the paths of the binaries in Go's build cache.
var paths struct {
	sync.Mutex
	of map[program]string
}

// binary returns the path of the binary in Go's build cache, and builds it unless it is there. It is safe for concurrent use. A line for a
// human goes to progress.
func (p program) binary(ctx context.Context, progress io.Writer) (string, error) {
	paths.Lock()
	defer paths.Unlock()
	if path := paths.of[p]; path != "" {
		return path, nil
	}
	logf(progress, "test/%s: the first build of %s takes up to some minutes", p.module, p.pkg)
	// Instead of running the binary, the go command prints its path. Other flags, such as -trimpath, would compile all libraries
	// again that other programs of the repository share.
	args := []string{"run", "-exec=echo", "-modfile=" + p.modFile}
	if p.kubernetes {
		version, err := p.goCommand(ctx, "list", "-modfile="+p.modFile, "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
		if err != nil {
			return "", err
		}
		args = append(args, "-ldflags="+ldflags(version))
	}
	// The call that builds the binary prints a temporary path, and the next one the path in the cache.
	for range 2 {
		path, err := p.goCommand(ctx, append(args, p.pkg)...)
		if err != nil {
			return "", err
		}
		if _, err := os.Stat(path); err == nil {
			if paths.of == nil {
				paths.of = map[program]string{}
			}
			paths.of[p] = path
			return path, nil
		}
	}
	return "", fmt.Errorf("the binary of %s in test/%s is not in the build cache after its build", p.pkg, p.module)
}

// goCommand runs the go command in the module, and returns its output.
func (p program) goCommand(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	_, file, _, _ := runtime.Caller(0)
	cmd.Dir = filepath.Join(filepath.Dir(file), "..", p.module)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s in test/%s: %w\n%s", args[0], p.module, err, &stderr)
	}
	return strings.TrimSpace(string(out)), nil
}

// ldflags returns the flags with which a program reports the version of Kubernetes, such as v1.36.3.
func ldflags(version string) string {
	numbers := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	flags := []string{"-s", "-w"}
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, stamp := range [][2]string{
			{"gitVersion", version},
			{"gitMajor", numbers[0]},
			{"gitMinor", numbers[1]},
			{"gitCommit", "unknown"},
			{"gitTreeState", "clean"},
			{"buildDate", "1970-01-01T00:00:00Z"},
		} {
			flags = append(flags, fmt.Sprintf("-X=%s.%s=%s", pkg, stamp[0], stamp[1]))
		}
	}
	return strings.Join(flags, " ")
}

// Build builds all binaries that are not in Go's build cache, from the Go modules that test/controlplane, test/certmanager and
// test/csi name. Building takes minutes, needs go on the PATH and, the first time, the Go module proxy. Lines for a human go to
// progress.
//
// PREBIND_TEST_KUBERNETES selects a minor version of Kubernetes, such as 1.34; by default it is that of test/controlplane. For another
// version, kube-apiserver, kube-controller-manager and kube-scheduler are built from test/kubernetes; the other binaries are the same
// for all versions.
func Build(ctx context.Context, progress io.Writer) error {
	all := []program{controlPlane, csiDriver, csiProvisioner, certManager}
	if version := os.Getenv(VersionEnv); version != "" {
		all = append(all, otherKubernetes(version))
	}
	for _, p := range all {
		if _, err := p.binary(ctx, progress); err != nil {
			return err
		}
	}
	return nil
}

// commands contains the commands that run the components, without their own arguments.
type commands map[string][]string

// findCommands returns the commands of the control plane, and builds what is not in Go's build cache.
func findCommands(ctx context.Context, o Options) (commands, error) {
	found := commands{}
	add := func(p program, components ...string) error {
		path, err := p.binary(ctx, o.Out)
		for _, component := range components {
			found[component] = []string{path, component}
		}
		return err
	}
	if err := add(controlPlane, Etcd, APIServer, ControllerManager, Scheduler, Provisioner, Kwok, Kubectl); err != nil {
		return nil, err
	}
	if version := os.Getenv(VersionEnv); version != "" {
		if err := add(otherKubernetes(version), APIServer, ControllerManager, Scheduler); err != nil {
			return nil, fmt.Errorf("building Kubernetes %s, which %s selects: %w", version, VersionEnv, err)
		}
	}
	if o.Beside != "" {
		newer := found[APIServer]
		if err := add(otherKubernetes(o.Beside), APIServer, ControllerManager, Scheduler); err != nil {
			return nil, fmt.Errorf("building Kubernetes %s: %w", o.Beside, err)
		}
		found[APIServer], found[OtherAPIServer] = newer, found[APIServer]
	}
	found[SecondScheduler] = found[Scheduler]
	return found, nil
}

func logf(w io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(w, format+"\n", args...)
}
