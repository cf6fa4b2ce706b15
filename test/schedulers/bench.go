// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/install"
)

// nodes is the number of nodes.
const nodes = 12

// reports is the directory of the reports, and results that of the JUnit XML.
const reports, results = "docs/conformance", "bin/conformance"

var (
	namespaced = []string{"ServiceAccount", "Role", "RoleBinding", "ConfigMap"}
	// applied are the kinds of objects that are applied from the manifests of a scheduler: the others run it in the cluster.
	applied = append([]string{"CustomResourceDefinition", "Namespace", "ClusterRole", "ClusterRoleBinding", "PriorityClass"}, namespaced...)
)

// bench is a control plane with Prebind and the scheduler.
type bench struct {
	options
	profile
	cluster   *cluster.Cluster
	client    kubernetes.Interface
	prebind   *install.Prebind
	processes []*cluster.Process
}

func (b *bench) start(ctx context.Context) error {
	var err error
	b.cluster, err = cluster.Start(ctx, cluster.Options{Out: os.Stderr, Kwok: true, Audit: true, WithoutScheduler: len(b.Processes) > 0})
	if err != nil {
		return err
	}
	b.client = b.cluster.Client()
	if err := b.createNodes(ctx); err != nil {
		return err
	}
	if err := b.installPrebind(ctx); err != nil {
		return err
	}
	if err := b.applyManifests(ctx); err != nil {
		return err
	}
	for _, p := range b.Processes {
		if err := b.startProgram(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// createNodes creates nodes with their CSINodes, as kubelets do.
func (b *bench) createNodes(ctx context.Context) error {
	all := cluster.Nodes("node", nodes)
	if err := cluster.CreateNodes(ctx, b.client, all...); err != nil {
		return err
	}
	for _, n := range all {
		_, err := b.client.StorageV1().CSINodes().Create(ctx, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("creating a CSINode: %w", err)
		}
	}
	return nil
}

// installPrebind starts two replicas, and names the scheduler in the FlowSchema, as documented.
func (b *bench) installPrebind(ctx context.Context) error {
	binary, err := install.Build(ctx, install.BuildOptions{Dir: b.cluster.Dir(), Client: true})
	if err != nil {
		return err
	}
	if b.prebind, err = install.New(ctx, install.Options{Cluster: b.cluster, Binary: binary}); err != nil {
		return err
	}
	if err := b.prebind.AddComponents(ctx, "plugins/policy"); err != nil {
		return err
	}
	if namespace, name, ok := strings.Cut(b.Binder, "/"); ok {
		patch := fmt.Sprintf(`[{"op": "add", "path": "/spec/rules/0/subjects/-", "value": {"kind": "ServiceAccount", "serviceAccount": {"namespace": %q, "name": %q}}}]`, namespace, name)
		if err := b.cluster.RunKubectl(ctx, "", "patch", "flowschema", "prebind", "--type=json", "--patch="+patch); err != nil {
			return err
		}
	}
	for range 2 {
		if _, err := b.prebind.Start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// applyManifests applies the manifests of the scheduler and the objects of the profile.
func (b *bench) applyManifests(ctx context.Context) error {
	if b.Namespace != "" {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: b.Namespace}}
		if _, err := b.client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating the namespace: %w", err)
		}
	}
	var objects []map[string]any
	for _, pattern := range b.Manifests {
		files, err := filepath.Glob(filepath.Join(b.source, filepath.FromSlash(pattern)))
		if err != nil || len(files) == 0 {
			return fmt.Errorf("%s contains no files %s: %w", b.source, pattern, err)
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			found, err := readObjects(content)
			if err != nil {
				return fmt.Errorf("reading %s: %w", file, err)
			}
			objects = append(objects, found...)
		}
	}
	rendered, err := b.render(ctx)
	if err != nil {
		return err
	}
	objects = append(objects, rendered...)
	if err := b.apply(ctx, objects); err != nil {
		return err
	}
	if len(objects) > 0 {
		if err := b.cluster.RunKubectl(ctx, "", "wait", "crd", "--all", "--for=condition=Established", "--timeout=2m"); err != nil {
			return err
		}
	}
	return b.apply(ctx, b.Objects)
}

// render returns the objects that a tool prints.
func (b *bench) render(ctx context.Context) ([]map[string]any, error) {
	if len(b.Render) == 0 {
		return nil, nil
	}
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	cmd, err := install.Tool(ctx, root, b.Render[0], b.Render[1:]...)
	if err != nil {
		return nil, err
	}
	cmd.Dir = b.source
	content, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("rendering the manifests: %w", err)
	}
	return readObjects(content)
}

// readObjects returns the objects of YAML documents that are to apply.
func readObjects(content []byte) ([]map[string]any, error) {
	var out []map[string]any
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	for {
		var object map[string]any
		if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return nil, err
		}
		if kind, _ := object["kind"].(string); slices.Contains(applied, kind) {
			out = append(out, object)
		}
	}
}

// apply applies objects of manifests. Those without a namespace are in that of the profile.
func (b *bench) apply(ctx context.Context, objects []map[string]any) error {
	if len(objects) == 0 {
		return nil
	}
	for _, o := range objects {
		object := unstructured.Unstructured{Object: o}
		if slices.Contains(namespaced, object.GetKind()) && object.GetNamespace() == "" {
			object.SetNamespace(b.Namespace)
		}
	}
	list, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": objects})
	if err != nil {
		return err
	}
	return b.cluster.RunKubectl(ctx, string(list), "apply", "--server-side", "--force-conflicts", "-f", "-")
}

// startProgram starts a program with the token of its service account.
func (b *bench) startProgram(ctx context.Context, p program) error {
	namespace, name, _ := strings.Cut(p.Account, "/")
	kubeconfig, err := b.cluster.ServiceAccountKubeconfig(ctx, namespace, name)
	if err != nil {
		return err
	}
	dir := filepath.Join(b.cluster.Dir(), p.Name)
	expand := func(text string) string {
		return os.Expand(text, func(name string) string {
			switch name {
			case "KUBECONFIG":
				return kubeconfig
			case "DIR":
				return dir
			case "PORT":
				var address string
				address, err = b.cluster.ReserveAddress(ctx)
				_, port, _ := net.SplitHostPort(address)
				return port
			}
			return ""
		})
	}
	var args, env []string
	for _, text := range p.Args {
		args = append(args, expand(text))
	}
	for _, text := range p.Env {
		env = append(env, expand(text))
	}
	if err != nil {
		return err
	}
	if err := b.writeConfig(ctx, p, dir, expand); err != nil {
		return err
	}
	path, err := filepath.Abs(filepath.Join(b.binaries, p.Name))
	if err != nil {
		return err
	}
	process := cluster.NewProcess(cluster.ProcessOptions{
		Name: p.Name, Path: path, Args: args, Env: env,
		LogFile: filepath.Join(b.cluster.Dir(), "logs", p.Name+".log"),
	})
	b.processes = append(b.processes, process)
	return process.Start()
}

// writeConfig writes the files of the program's ConfigMap to the directory.
func (b *bench) writeConfig(ctx context.Context, p program, dir string, expand func(string) string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil || p.Config == "" {
		return err
	}
	namespace, name, _ := strings.Cut(p.Config, "/")
	c, err := b.client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the configuration: %w", err)
	}
	for file, content := range c.Data {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content+expand(p.Extra[file])), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// conform runs the test, and returns its table, also if a check fails.
func (b *bench) conform(ctx context.Context, v version) (string, error) {
	if err := os.MkdirAll(results, 0o755); err != nil {
		return "", err
	}
	junit := filepath.Join(results, fileName(b.options, v)+".xml")
	args := append([]string{"conformance", "--kubeconfig=" + b.cluster.Kubeconfig(), "--junit=" + junit}, b.flags()...)
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, b.prebind.Client(), args...)
	cmd.Stdout = io.MultiWriter(os.Stdout, &out)
	cmd.Stderr = os.Stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && out.Len() > 0 {
		err = nil
	}
	for _, p := range b.processes {
		err = errors.Join(err, p.Err())
	}
	table, _, _ := strings.Cut(out.String(), " without a result.\n")
	return table + " without a result.\n", err
}

// flags returns the flags of the test that a report shows.
func (b *bench) flags() []string {
	return slices.Concat([]string{"--scheduler-name=" + b.SchedulerName}, b.Conformance)
}

func (b *bench) stop() error {
	var errs []error
	for _, p := range slices.Backward(b.processes) {
		errs = append(errs, p.Stop())
	}
	if b.prebind != nil {
		errs = append(errs, b.prebind.Stop())
	}
	if b.cluster != nil {
		errs = append(errs, b.cluster.Stop())
	}
	return errors.Join(errs...)
}
