// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kubernetes is kube-apiserver, kube-scheduler and kube-controller-manager in one binary, for the versions of Kubernetes
// that test/controlplane does not contain. The first argument selects the component. Each file VERSION.mod builds it from one version: go build -modfile=VERSION.mod.
package main

import (
	"fmt"
	"os"
	_ "time/tzdata" // CronJob time zones in kube-apiserver and kube-controller-manager

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics of every component
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	os.Exit(run())
}

// run executes the component that the command line names and returns the exit code.
func run() int {
	switch name := component(); name {
	case "kube-apiserver":
		return cli.Run(apiserver.NewAPIServerCommand())
	case "kube-scheduler":
		return cli.Run(scheduler.NewSchedulerCommand())
	case "kube-controller-manager":
		return cli.Run(controllermanager.NewControllerManagerCommand())
	default:
		fmt.Fprintf(os.Stderr, "kubernetes: unknown component %q: the first argument must be "+
			"kube-apiserver, kube-scheduler or kube-controller-manager\n", name)
		return 2
	}
}

// component returns the component's name, and leaves in os.Args its name and its arguments.
func component() string {
	if len(os.Args) < 2 {
		return ""
	}
	os.Args = os.Args[1:]
	return os.Args[0]
}
