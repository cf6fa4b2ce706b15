// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command schedulers runs the conformance test against an unmodified scheduler on a real control plane, and writes the report in
// docs/conformance.
package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/test/cluster"
)

// kubeScheduler is the scheduler that is part of the control plane.
const kubeScheduler = "kube-scheduler"

// profiles contains how to run each scheduler.
//
//go:embed *.yaml
var profiles embed.FS

// options are the flags.
type options struct {
	// scheduler is the name of the profile.
	scheduler string
	// source is a checkout of the scheduler, with its manifests, and binaries the directory of its programs.
	source, binaries string
	// keep keeps everything running after the test.
	keep bool
}

// profile describes how to run a scheduler.
type profile struct {
	// Title is the name of the scheduler for people.
	Title string `json:"title"`
	// Repository is the address of its source.
	Repository string `json:"repository"`
	// SchedulerName is the name in pods.
	SchedulerName string `json:"schedulerName"`
	// Namespace is that of the manifests without one.
	Namespace string `json:"namespace"`
	// Manifests are files in the checkout, as patterns. Only CRDs, accounts, roles and ConfigMaps in them are applied.
	Manifests []string `json:"manifests"`
	// Render is a tool of tools.mod with its arguments. It prints more manifests.
	Render []string `json:"render"`
	// Objects are applied after the manifests.
	Objects []map[string]any `json:"objects"`
	// Binder is the service account that posts the Bindings, as NAMESPACE/NAME.
	Binder string `json:"binder"`
	// Processes are the programs, in the order of their start.
	Processes []program `json:"processes"`
	// Conformance are flags of the test.
	Conformance []string `json:"conformance"`
}

// program is a process of the scheduler. Values can contain ${KUBECONFIG}, ${DIR}, and ${PORT}, which differs in each value.
type program struct {
	Name string `json:"name"`
	// Account is the service account, as NAMESPACE/NAME.
	Account string   `json:"account"`
	Args    []string `json:"args"`
	Env     []string `json:"env"`
	// Config is a ConfigMap, as NAMESPACE/NAME, whose files are in ${DIR}.
	Config string `json:"config"`
	// Extra is appended to the files.
	Extra map[string]string `json:"extra"`
}

// CommandLine returns the command for a report.
func (p program) CommandLine() []string { return slices.Concat(p.Env, []string{p.Name}, p.Args) }

func main() {
	var o options
	pflag.StringVar(&o.scheduler, "scheduler", kubeScheduler, "Name of a profile in test/schedulers.")
	pflag.StringVar(&o.source, "source", "", "Checkout of the scheduler. Not for kube-scheduler.")
	pflag.StringVar(&o.binaries, "binaries", "", "Directory with the programs of the scheduler. Not for kube-scheduler.")
	pflag.BoolVar(&o.keep, "keep", false, "Keep the control plane, Prebind and the scheduler running after the test until Ctrl-C.")
	pflag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	p, err := readProfile(o.scheduler)
	if err != nil {
		return err
	}
	v, err := readVersion(ctx, o, p)
	if err != nil {
		return err
	}
	kubernetes, err := kubernetesVersion(ctx)
	if err != nil {
		return err
	}
	b := &bench{options: o, profile: p}
	defer func() { err = errors.Join(err, b.stop()) }()
	if err := b.start(ctx); err != nil {
		return err
	}
	table, err := b.conform(ctx, v)
	if err != nil {
		return err
	}
	if err := writeReport(b, v, kubernetes.name, table); err != nil {
		return err
	}
	if o.keep {
		fmt.Printf("Everything keeps running: export KUBECONFIG=%s\nLogs: %s\nPress Ctrl-C to stop it.\n", b.cluster.Kubeconfig(), b.cluster.Dir())
		<-ctx.Done()
	}
	return nil
}

func readProfile(name string) (profile, error) {
	var p profile
	content, err := profiles.ReadFile(name + ".yaml")
	if err != nil {
		return p, fmt.Errorf("test/schedulers has no profile %s", name)
	}
	return p, yaml.UnmarshalStrict(content, &p)
}

// version is what was tested.
type version struct{ name, commit string }

// readVersion returns the tag and commit of the checkout, or the version of the control plane.
func readVersion(ctx context.Context, o options, p profile) (version, error) {
	if len(p.Processes) == 0 {
		return kubernetesVersion(ctx)
	}
	if o.source == "" || o.binaries == "" {
		return version{}, errors.New("--source and --binaries are required for this scheduler")
	}
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "git", append([]string{"-C", o.source}, args...)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	commit, err := git("rev-parse", "--short=12", "HEAD")
	if err != nil {
		return version{}, fmt.Errorf("reading the commit of %s: %w", o.source, err)
	}
	name, notRelease := git("describe", "--tags", "--exact-match")
	if notRelease != nil {
		name = commit
	}
	return version{name: strings.TrimPrefix(name, "v"), commit: commit}, nil
}

// kubernetesVersion returns the version of the control plane.
func kubernetesVersion(ctx context.Context) (version, error) {
	dir, modFile := "test/controlplane", "go.mod"
	if minor := os.Getenv(cluster.VersionEnv); minor != "" {
		dir, modFile = "test/kubernetes", minor+".mod"
	}
	cmd := exec.CommandContext(ctx, "go", "list", "-modfile="+modFile, "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
	cmd.Dir = filepath.FromSlash(dir)
	out, err := cmd.Output()
	return version{name: strings.TrimPrefix(strings.TrimSpace(string(out)), "v")}, err
}
