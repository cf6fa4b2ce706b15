// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

const (
	chart = "charts/prebind"
	// kubeVersion is the Kubernetes version for the chart. Helm that is built from its module has another default.
	kubeVersion = "1.37.0"
	// hookAnnotation marks an object as a Helm hook.
	hookAnnotation = "helm.sh/hook"
	preDelete      = "pre-delete"
	// policyAnnotation with the value keep marks an object that Helm does not delete.
	policyAnnotation = "helm.sh/resource-policy"
	keep             = "keep"
)

// RenderChart returns the output of `helm template` for the chart in the checkout at root, including hooks.
func RenderChart(ctx context.Context, root string, args ...string) ([]byte, error) {
	return render(ctx, root, filepath.FromSlash(chart), args...)
}

// render returns the output of `helm template` for a chart. Its path can be relative to root.
func render(ctx context.Context, root, chart string, args ...string) ([]byte, error) {
	cmd, err := Tool(ctx, root, "helm", append([]string{"template", "prebind", chart, "--kube-version=" + kubeVersion}, args...)...)
	if err != nil {
		return nil, err
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("helm template %v: %w\n%s", args, err, &stderr)
	}
	return out, nil
}

// renderChart writes the objects of the chart, those that Helm keeps, and those of its pre-delete hook to a file each.
func (p *Prebind) renderChart(ctx context.Context) error {
	args := []string{"--namespace=" + Namespace}
	for _, v := range p.o.Values {
		args = append(args, "--set="+v)
	}
	var objects, kept, preDeletion bytes.Buffer
	for _, hooks := range []bool{false, true} {
		// With the Namespace, as for `kubectl apply`, the output has no hook.
		rendered, err := render(ctx, p.root, p.o.Chart, append(args, fmt.Sprintf("--set=createNamespace=%t", !hooks))...)
		if err != nil {
			return err
		}
		documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(rendered)))
		for {
			document, err := documents.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			var o unstructured.Unstructured
			if err := errors.Join(err, yaml.Unmarshal(document, &o.Object)); err != nil {
				return fmt.Errorf("reading what the chart renders: %w", err)
			}
			to, hook := &objects, o.GetAnnotations()[hookAnnotation]
			switch {
			case hook != "" && hook != preDelete:
				return fmt.Errorf("unsupported hook %s in the chart", hook)
			case hooks != (hook == preDelete):
				continue
			case hooks:
				to = &preDeletion
				if o.GetKind() == "Job" {
					p.preDelete = &batchv1.Job{}
					if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, p.preDelete); err != nil {
						return fmt.Errorf("reading the Job of the pre-delete hook: %w", err)
					}
				}
			case o.GetAnnotations()[policyAnnotation] == keep:
				to = &kept
			}
			fmt.Fprintf(to, "---\n%s", document)
		}
	}
	if err := os.MkdirAll(p.file(""), 0o700); err != nil {
		return err
	}
	p.source = []string{"-f", p.file("chart.yaml")}
	if kept.Len() > 0 {
		p.kept = []string{"-f", p.file("kept.yaml")}
	}
	return errors.Join(
		os.WriteFile(p.file("kept.yaml"), kept.Bytes(), 0o600),
		os.WriteFile(p.file("chart.yaml"), objects.Bytes(), 0o600),
		os.WriteFile(p.hookFile(), preDeletion.Bytes(), 0o600))
}

func (p *Prebind) hookFile() string { return p.file("pre-delete.yaml") }

// runPreDelete does the work of Helm, the Job controller and the kubelet for the chart's pre-delete hook. It applies the objects
// of the hook, runs the command of the Job with the Job's service account, and deletes the objects.
func (p *Prebind) runPreDelete(ctx context.Context) error {
	if p.preDelete == nil {
		return errors.New("the chart has no pre-delete hook with a Job")
	}
	if err := p.kubectl(ctx, "apply", "-f", p.hookFile()); err != nil {
		return err
	}
	job := p.preDelete.Spec.Template.Spec
	kubeconfig, err := p.o.Cluster.ServiceAccountKubeconfig(ctx, Namespace, job.ServiceAccountName)
	if err != nil {
		return err
	}
	if err := p.runOnce(ctx, append(job.Containers[0].Args, "--kubeconfig="+kubeconfig)...); err != nil {
		return err
	}
	return p.kubectl(ctx, "delete", "--wait=false", "-f", p.hookFile())
}
