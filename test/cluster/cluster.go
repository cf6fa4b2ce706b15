// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Cluster is a running control plane. Its methods may be called from many
// goroutines.
type Cluster struct {
	o        Options
	commands commands
	dir      string // with data, certificates and logs
	failed   bool   // to start: dir stays

	pki         *pki
	reserved    ports
	ports       map[string]int    // by component, and etcdPeer
	kubeconfigs map[string]string // by component
	admin       *rest.Config
	client      kubernetes.Interface // with admin
	adminPath   string
	egress      net.Listener
	spread      net.Listener
	services    *Services
	processes   map[string]*Process

	stop    sync.Once
	stopErr error
}

// discardLogs keeps controller-runtime from printing a stack trace after 30 s. It must not set the logger twice at the same time.
var discardLogs = sync.OnceFunc(func() { log.SetLogger(logr.Discard()) })

// Start starts a control plane and returns when it can be used: every component
// is ready and the namespace default is there with its service account. If it
// fails, or ctx ends, everything is stopped again; the logs stay, and the error
// says where. After Start has returned, ctx has no effect: call [Cluster.Stop].
// Start discards the logs of controller-runtime in this process.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	discardLogs()
	o = o.complete()
	commands, err := findCommands(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("start a cluster: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready after %s", startTimeout))
	defer cancel()
	began := time.Now()
	c := &Cluster{
		o: o, commands: commands,
		ports: map[string]int{}, kubeconfigs: map[string]string{}, processes: map[string]*Process{},
	}
	if err := c.start(ctx); err != nil {
		c.failed = true
		return nil, errors.Join(fmt.Errorf("start a cluster: %w\n(logs are kept in %s)", err, c.dir), c.Stop())
	}
	logf(o.Out, "the control plane is ready after %s: KUBECONFIG=%s", time.Since(began).Round(100*time.Millisecond), c.adminPath)
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	if err := c.prepare(ctx); err != nil {
		return err
	}
	for _, component := range c.o.components() {
		c.processes[component] = NewProcess(ProcessOptions{
			Name:    component,
			Path:    c.commands[component][0],
			Args:    append(c.commands[component][1:], c.args(component)...),
			LogFile: c.file(filepath.Join("logs", component+".log")),
			Health:  c.health(component),
			Grace:   graces[component],
		})
	}
	for _, component := range c.o.servers() {
		if err := c.launch(ctx, component); err != nil {
			return err
		}
	}
	c.services = newServices(c.egress, c.client)
	if err := c.bootstrap(ctx); err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	for _, component := range c.o.components()[len(c.o.servers()):] {
		group.Go(func() error { return c.launch(groupCtx, component) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return WaitForPods(ctx, c.client, corev1.NamespaceDefault)
}

// graces are shorter than the usual for components that would use all of it when
// what they talk to does not answer. Nothing is lost by it: what they wrote is
// with the operating system, which does not go down.
var graces = map[string]time.Duration{Etcd: time.Second, APIServer: 5 * time.Second}

// launch starts a component and waits until it is ready.
func (c *Cluster) launch(ctx context.Context, component string) error {
	began := time.Now()
	if err := c.processes[component].Run(ctx); err != nil {
		return err
	}
	logf(c.o.Out, "%s is ready after %s", component, time.Since(began).Round(100*time.Millisecond))
	return nil
}

// Stop stops every component, and removes the folder.
// Calls after the first return what that one did: what went wrong, which includes
// a component that had ended by itself.
func (c *Cluster) Stop() error {
	c.stop.Do(func() { c.stopErr = c.shutdown() })
	return c.stopErr
}

func (c *Cluster) shutdown() error {
	errs := []error{c.Err()}
	// Clients go before the server, and the server before its storage, so that
	// no log ends in complaints about the others.
	var clients errgroup.Group
	for _, component := range []string{ControllerManager, Scheduler, SecondScheduler, Provisioner, Kwok} {
		if process := c.processes[component]; process != nil {
			clients.Go(process.Stop)
		}
	}
	errs = append(errs, clients.Wait())
	for _, component := range []string{APIServer, OtherAPIServer, Etcd} {
		if process := c.processes[component]; process != nil {
			errs = append(errs, process.Stop())
		}
	}
	if c.services != nil {
		errs = append(errs, c.services.close())
	}
	if c.spread != nil {
		errs = append(errs, c.spread.Close())
	}
	if c.egress != nil {
		_ = c.egress.Close() // The server that used it may have closed it.
	}
	errs = append(errs, c.reserved.release())
	if !c.failed {
		errs = append(errs, os.RemoveAll(c.dir))
	}
	return errors.Join(errs...)
}

// Err returns an error, with the end of its log, for each component that exited without Stop or Kill of its [Process], or nil.
func (c *Cluster) Err() error {
	var errs []error
	for _, process := range c.running() {
		errs = append(errs, process.Err())
	}
	return errors.Join(errs...)
}

// Config returns a configuration for a client that may do everything, as a member
// of system:masters, and that does not limit its own rate in practice. The caller
// owns it.
func (c *Cluster) Config() *rest.Config { return rest.CopyConfig(c.admin) }

// Client returns a client with Config.
func (c *Cluster) Client() kubernetes.Interface { return c.client }

// Kubeconfig returns the path of a kubeconfig with the rights of Config.
func (c *Cluster) Kubeconfig() string { return c.adminPath }

// Dir returns the cluster's folder. The logs are in its folder logs.
func (c *Cluster) Dir() string { return c.dir }

// Services returns what brings the API server to Services of this cluster.
func (c *Cluster) Services() *Services { return c.services }

// Process returns the component of that name, such as [APIServer], and nil if it
// was left out.
func (c *Cluster) Process(component string) *Process { return c.processes[component] }

// Kubectl returns a kubectl command with the rights of Config, which ends when
// ctx does. It sees nothing of the user's own kubectl settings.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.file(Kubectl), args...)
	// By environment and not by flag: kubectl takes no flags before the name of
	// a plugin.
	cmd.Env = append(os.Environ(),
		"KUBECONFIG="+c.adminPath,
		"KUBECACHEDIR="+c.file("kubectl-cache"),
		"KUBECTL_KUBERC=false",
	)
	return cmd
}

// RunKubectl runs Kubectl with the input. An error contains its output.
func (c *Cluster) RunKubectl(ctx context.Context, input string, args ...string) error {
	cmd := c.Kubectl(ctx, args...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl %v: %w\n%s", args, err, out)
	}
	return nil
}

// DumpLogs writes the end of each component's log.
func (c *Cluster) DumpLogs(w io.Writer) {
	for _, process := range c.running() {
		logf(w, "--- %s, the end of %s\n%s", process.Name(), process.LogFile(), process.Tail(tailLines))
	}
}

func (c *Cluster) file(name string) string { return filepath.Join(c.dir, name) }
