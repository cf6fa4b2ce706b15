// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command controlplane is a whole Kubernetes control plane in one binary: etcd,
// kube-apiserver, kube-scheduler, kube-controller-manager, kubectl, kwok and the
// test provisioner. The name of the program (a symlink), or else its first
// argument, selects one. One binary instead of seven shares the
// libraries that all of them link, which saves minutes of build time and most
// of the disk space.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	_ "time/tzdata" // CronJob time zones in kube-apiserver and kube-controller-manager

	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // the authentication plugins kubectl is built with
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics of every component
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"

	"github.com/prebind/prebind/test/controlplane/kwok"
	"github.com/prebind/prebind/test/controlplane/provisioner"
)

func main() {
	os.Exit(run())
}

// run executes the component that the command line asks for and returns the
// process's exit code.
func run() int {
	name := component()
	switch name {
	case "etcd":
		etcdmain.Main(os.Args)
		return 0
	case "kube-apiserver":
		return cli.Run(apiserver.NewAPIServerCommand())
	case "kube-scheduler":
		return cli.Run(scheduler.NewSchedulerCommand())
	case "kube-controller-manager":
		return cli.Run(controllermanager.NewControllerManagerCommand())
	case "kwok":
		return cli.Run(kwok.NewCommand())
	case "kubectl":
		return kubectl()
	case "test-provisioner":
		return cli.Run(provisioner.NewCommand())
	default:
		fmt.Fprintf(os.Stderr, "controlplane: no component %q: call it as, or with a first argument of, "+
			"etcd, kube-apiserver, kube-scheduler, kube-controller-manager, kubectl, kwok or test-provisioner\n", name)
		return 2
	}
}

// component returns the component's name and leaves os.Args as that component
// expects them: its own name, then its arguments.
func component() string {
	name := strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe")
	if name != "controlplane" {
		return name
	}
	if len(os.Args) < 2 {
		return ""
	}
	os.Args = os.Args[1:]
	return os.Args[0]
}

func kubectl() int {
	// The command's own construction already logs (plugins, kuberc), before
	// the flags are parsed, so the verbosity has to be looked up beforehand.
	// An unreadable value is reported by the parser itself, later.
	_, _ = logs.GlogSetter(cmd.GetLogVerbosity(os.Args))
	if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err) // prints the error as users know it, and exits
	}
	return 0
}
