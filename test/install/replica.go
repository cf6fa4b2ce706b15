// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/prebind/prebind/test/cluster"
)

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
