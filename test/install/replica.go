// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/test/cluster"
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

// Replica is one process of Prebind. You can signal, kill and restart the process. Its addresses do not change.
type Replica struct {
	*cluster.Process
	webhook, health, metrics string
	// clock is the file with the offset of its clock. It is empty if the replica does not read it.
	clock string
}

// Start launches another replica, and waits until it is ready.
func (p *Prebind) Start(ctx context.Context, extraArgs ...string) (*Replica, error) {
	r, err := p.Launch(ctx, extraArgs...)
	if err != nil {
		return r, err
	}
	return r, r.WaitReady(ctx)
}

// Launch starts another replica with the arguments in addition to the shipped command line, and adds it to the Service.
func (p *Prebind) Launch(ctx context.Context, extraArgs ...string) (*Replica, error) {
	r := &Replica{}
	for _, address := range []*string{&r.webhook, &r.health, &r.metrics} {
		var err error
		if *address, err = p.o.Cluster.ReserveAddress(ctx); err != nil {
			return nil, err
		}
	}
	name := fmt.Sprintf("prebind-%d", p.started)
	p.started++
	args, env, err := p.pod.commandLine(name)
	if err != nil {
		return nil, err
	}
	if p.o.Clock {
		r.clock = p.file(name + ".clock")
		env = append(env, clockFile+"="+r.clock)
	}
	r.Process = cluster.NewProcess(cluster.ProcessOptions{
		Name: name,
		Path: p.o.Binary,
		// The last of two equal flags applies. These flags set the local token and ports.
		Args: slices.Concat(args, []string{
			"--kubeconfig=" + p.kubeconfig,
			"--webhook-bind-address=" + r.webhook,
			"--health-probe-bind-address=" + r.health,
			"--metrics-bind-address=" + r.metrics,
			"-v=2",
		}, extraArgs),
		Env:     slices.Concat(env, p.env),
		LogFile: p.file(name + ".log"),
		Health:  r.ready,
		Grace:   p.pod.grace,
	})
	p.replicas = append(p.replicas, r)
	if err := r.Process.Start(); err != nil {
		return nil, err
	}
	p.route()
	return r, nil
}

// Setenv sets an environment variable for replicas that start later.
func (p *Prebind) Setenv(name, value string) { p.env = append(p.env, name+"="+value) }

// Replicas returns all started replicas, running or not.
func (p *Prebind) Replicas() []*Replica { return slices.Clone(p.replicas) }

// Stop stops all replicas like deleted pods, and removes them from Replicas. The webhook stays registered.
func (p *Prebind) Stop() error {
	var errs []error
	for _, r := range p.replicas {
		errs = append(errs, r.Err(), r.Process.Stop())
	}
	p.replicas = nil
	p.route()
	return errors.Join(errs...)
}

// route adds all replicas to the Service, which connects to ready replicas.
func (p *Prebind) route() { p.RouteTo(p.replicas...) }

// RouteTo routes new connections of the Service to these replicas only, until another replica starts. Open connections do not
// change.
func (p *Prebind) RouteTo(replicas ...*Replica) {
	var backends []cluster.Backend
	for _, r := range replicas {
		backends = append(backends, cluster.Backend{
			Address: r.webhook,
			Ready:   cluster.HTTPReady("http://" + r.health + "/readyz"),
		})
	}
	p.o.Cluster.Services().Route(Namespace, Service, ServicePort, backends...)
}

func (r *Replica) ready(ctx context.Context) error {
	_, err := r.get(ctx, "http://"+r.health+"/readyz")
	return err
}

// Metrics returns the response of /metrics.
func (r *Replica) Metrics(ctx context.Context) (string, error) {
	return r.get(ctx, "http://"+r.metrics+"/metrics")
}

// Sum returns the sum of the series of a metric that have the label, in the response of a metrics endpoint, and whether there is such a
// series.
func Sum(metrics, name, label string) (total float64, ok bool) {
	for line := range strings.Lines(metrics) {
		series, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		series, labels, _ := strings.Cut(series, "{")
		if series != name {
			continue
		}
		// Values of labels can contain spaces.
		text := labels + " " + rest
		if value, err := strconv.ParseFloat(text[strings.LastIndex(text, " ")+1:], 64); err == nil && strings.Contains(text, label) {
			total, ok = total+value, true
		}
	}
	return total, ok
}

// UntilHolds waits until the replica holds n calls. It returns an error when ctx ends.
func (r *Replica) UntilHolds(ctx context.Context, n int) error {
	held := -1.0
	err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		metrics, err := r.Metrics(ctx)
		held, _ = Sum(metrics, "prebind_holds", "")
		return held == float64(n), err
	})
	if err != nil {
		return fmt.Errorf("%s holds %g calls, want %d: %w", r.Name(), held, n, err)
	}
	return nil
}

// Binary returns the path of the prebind binary.
func (p *Prebind) Binary() string { return p.o.Binary }

// Client returns the path of kubectl-prebind beside the binary.
func (p *Prebind) Client() string { return filepath.Join(filepath.Dir(p.o.Binary), clientProgram) }

// Kubeconfig returns the path of a kubeconfig file with a token of the shipped service account.
func (p *Prebind) Kubeconfig() string { return p.kubeconfig }

// CertDir returns the directory of the serving certificate, if the installation mounts it.
func (p *Prebind) CertDir() string { return p.file("secrets/" + servingSecret) }

// WebhookAddress returns the address of the webhook.
func (r *Replica) WebhookAddress() string { return r.webhook }

// MetricsAddress returns the address of the metrics.
func (r *Replica) MetricsAddress() string { return r.metrics }

// HealthAddress returns the address of the probes.
func (r *Replica) HealthAddress() string { return r.health }

func (r *Replica) get(ctx context.Context, url string) (string, error) {
	body, code, err := Fetch(ctx, url)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("%s returned %d: %s", url, code, body)
	}
	return body, err
}

// Fetch returns the body and the status code.
func Fetch(ctx context.Context, url string) (string, int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", 0, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), response.StatusCode, err
}
