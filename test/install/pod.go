// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const configKey = "config.yaml"

// pod contains the supported fields of the pod template of the shipped Deployment.
type pod struct {
	args []string
	env  []corev1.EnvVar
	// limits contains the resource limits of the container.
	limits corev1.ResourceList
	// mounts contains the local directories by their path in the container.
	mounts  map[string]string
	volumes []corev1.Volume
	grace   time.Duration
	// preStop is the time between the deletion of a pod and SIGTERM.
	preStop time.Duration
}

// readDeployment reads the pod template of the shipped Deployment.
func (p *Prebind) readDeployment(ctx context.Context) error {
	var d appsv1.Deployment
	if err := p.client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: deployment}, &d); err != nil {
		return fmt.Errorf("reading the Deployment: %w", err)
	}
	spec := d.Spec.Template.Spec
	if n := len(spec.Containers); n != 1 {
		return fmt.Errorf("the Deployment has %d containers, want 1", n)
	}
	container := spec.Containers[0]
	p.pod = pod{args: container.Args, env: container.Env, limits: container.Resources.Limits, mounts: map[string]string{}, volumes: spec.Volumes}
	if seconds := spec.TerminationGracePeriodSeconds; seconds != nil {
		p.pod.grace = time.Duration(*seconds) * time.Second
	}
	if l := container.Lifecycle; l != nil && l.PreStop != nil && l.PreStop.Sleep != nil {
		p.pod.preStop = time.Duration(l.PreStop.Sleep.Seconds) * time.Second
	}
	for _, m := range container.VolumeMounts {
		i := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if i < 0 {
			return fmt.Errorf("the Deployment mounts %s, which is not one of its volumes", m.Name)
		}
		dir, err := p.volumeDir(spec.Volumes[i])
		if err != nil {
			return err
		}
		p.pod.mounts[m.MountPath] = dir
	}
	return nil
}

// volumeDir returns the local directory of a volume.
func (p *Prebind) volumeDir(v corev1.Volume) (string, error) {
	switch {
	case v.Secret != nil:
		return p.file("secrets/" + v.Secret.SecretName), nil
	case v.ConfigMap != nil:
		return p.file("configmaps/" + v.ConfigMap.Name), nil
	default:
		return "", fmt.Errorf("unsupported type of volume %s", v.Name)
	}
}

// MountVolumes writes the files of the Deployment's volumes for the replicas, like the kubelet before it starts a pod, and within a
// minute after a change. The sources of each volume must exist.
func (p *Prebind) MountVolumes(ctx context.Context) error {
	for _, v := range p.pod.volumes {
		dir, err := p.volumeDir(v)
		if err != nil {
			return err
		}
		files := map[string][]byte{}
		if v.Secret != nil {
			if p.o.CertManager {
				if err := p.awaitSecret(ctx, v.Secret.SecretName); err != nil {
					return err
				}
			}
			var secret corev1.Secret
			err = p.client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: v.Secret.SecretName}, &secret)
			files = secret.Data
		} else {
			var found corev1.ConfigMap
			err = p.client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: v.ConfigMap.Name}, &found)
			for name, content := range found.Data {
				files[name] = []byte(content)
			}
		}
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("pods of the Deployment cannot start: source of volume %s: %w", v.Name, err)
		}
		if err == nil {
			err = writeFiles(dir, files)
		}
		if err != nil {
			return fmt.Errorf("mounting the volume %s: %w", v.Name, err)
		}
	}
	return nil
}

// SetConfig writes the PrebindConfiguration to the ConfigMap of the Deployment, for replicas that start later.
func (p *Prebind) SetConfig(ctx context.Context, yaml string) error {
	i := slices.IndexFunc(p.pod.volumes, func(v corev1.Volume) bool { return v.ConfigMap != nil })
	if i < 0 {
		return errors.New("the Deployment mounts no ConfigMap")
	}
	name := p.pod.volumes[i].ConfigMap.Name
	var found corev1.ConfigMap
	if err := p.client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: name}, &found); err != nil {
		return fmt.Errorf("reading the configuration: %w", err)
	}
	found.Data = map[string]string{configKey: yaml}
	if err := p.client.Update(ctx, &found); err != nil {
		return fmt.Errorf("writing the configuration: %w", err)
	}
	return p.MountVolumes(ctx)
}

// commandLine returns the arguments and the environment of the container with local paths.
func (d pod) commandLine(name string) (args, env []string, err error) {
	values := map[string]string{}
	for _, e := range d.env {
		value, err := d.valueOf(e, name)
		if err != nil {
			return nil, nil, err
		}
		values[e.Name] = expand(value, values)
		env = append(env, e.Name+"="+values[e.Name])
	}
	for _, a := range d.args {
		args = append(args, d.here(expand(a, values)))
	}
	return args, env, nil
}

func (d pod) valueOf(e corev1.EnvVar, name string) (string, error) {
	if e.ValueFrom == nil {
		return e.Value, nil
	}
	if field := e.ValueFrom.FieldRef; field != nil {
		switch field.FieldPath {
		case "metadata.name":
			return name, nil
		case "metadata.namespace":
			return Namespace, nil
		}
	}
	if field := e.ValueFrom.ResourceFieldRef; field != nil && field.Resource == "limits.memory" {
		return strconv.FormatInt(d.limits.Memory().Value(), 10), nil
	}
	return "", fmt.Errorf("unsupported source of variable %s", e.Name)
}

// here returns the argument with the local path instead of the path in the container.
func (d pod) here(arg string) string {
	flag, value, found := strings.Cut(arg, "=")
	if !found {
		return arg
	}
	for mount, dir := range d.mounts {
		if value == mount {
			return flag + "=" + dir
		}
		if below, ok := strings.CutPrefix(value, mount+"/"); ok {
			return flag + "=" + path.Join(dir, below)
		}
	}
	return arg
}

// expand replaces references to variables such as $(POD_NAME), like Container.args.
func expand(text string, values map[string]string) string {
	for name, value := range values {
		text = strings.ReplaceAll(text, "$("+name+")", value)
	}
	return text
}
