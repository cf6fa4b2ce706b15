// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/test/cluster"
)

// Names in config/webhook.
const (
	Namespace = "prebind-system"
	Service   = "prebind-webhook"
	// ServicePort is the port at which the API server calls the Service.
	ServicePort = 443
	WebhookName = "pods-binding.prebind.dev"

	deployment     = "prebind"
	serviceAccount = "prebind"
	webhookConfig  = "prebind"
	servingSecret  = "prebind-webhook-tls"
	manifests      = "config/webhook"
)

// Options of an installation.
type Options struct {
	// Cluster is the target of the installation. Required.
	Cluster *cluster.Cluster
	// Binary is the path of the prebind binary. See Build. Required.
	Binary string
	// Root is the directory of another checkout whose manifests are installed. Empty means this checkout.
	Root string
	// Clock must be set if Binary was built with BuildOptions.Clock and tests call Replica.SetClock.
	Clock bool
	// Kustomization is the directory to install from, relative to the root of the checkout. Empty means config/webhook.
	Kustomization string
	// Manifest is the path of a file with manifests to install instead of a kustomization. It is applied on the server.
	Manifest string
	// Apply applies manifests instead of this package, and Delete unregisters and deletes them. They must be set together.
	Apply, Delete func(ctx context.Context) error
	// Chart is the path of a chart to install with Helm instead of a kustomization.
	Chart string
	// Values are the values of the chart, each as key=value.
	Values []string
	// WithoutCertManager omits the CRDs of cert-manager. The installation must not need them.
	WithoutCertManager bool
	// CertManager runs cert-manager, which issues the certificates and injects the CA. After a change of a Secret, call
	// MountVolumes.
	CertManager bool
}

// Prebind is an installation. Its methods are not safe for concurrent use.
type Prebind struct {
	o          Options
	root       string
	client     client.Client
	pod        pod
	kubeconfig string
	replicas   []*Replica
	// started is the number of replicas that were ever started.
	started int
	// env contains the variables of Setenv.
	env []string
	// certManager is nil if this package issues the certificates.
	certManager *cluster.Process
	// source contains the arguments of kubectl apply and delete: -k and a directory, or -f and a file.
	source []string
	// kept is like source, for objects that remain after the uninstallation.
	kept []string
	// preDelete is the Job of the chart's hook.
	preDelete *batchv1.Job
}

// New installs the shipped manifests without starting a replica. Until a replica runs, only pods in exempt namespaces can be
// bound.
func New(ctx context.Context, o Options) (*Prebind, error) {
	if o.Cluster == nil || o.Binary == "" {
		return nil, errors.New("install: Cluster and Binary are required")
	}
	root, err := checkout(ctx, o.Root)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), cmapi.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	c, err := client.New(o.Cluster.Config(), client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("install: %w", err)
	}
	p := &Prebind{o: o, root: root, client: c}
	for _, step := range []func(context.Context) error{p.applyCertManager, p.chooseSource, p.applyManifests, p.readDeployment, p.IssueCertificates, p.MountVolumes} {
		if err := step(ctx); err != nil {
			return nil, fmt.Errorf("install: %w", err)
		}
	}
	p.kubeconfig, err = o.Cluster.ServiceAccountKubeconfig(ctx, Namespace, serviceAccount)
	return p, err
}

// applyCertManager installs the CRDs of cert-manager, so that the shipped Issuers and Certificates can be applied.
func (p *Prebind) applyCertManager(ctx context.Context) error {
	if p.o.WithoutCertManager {
		return nil
	}
	dir, err := moduleDir(ctx, "github.com/cert-manager/cert-manager")
	if err != nil {
		return err
	}
	create := []string{"create"}
	kinds := []string{"issuers", "certificates"}
	if p.o.CertManager {
		kinds = append(kinds, "clusterissuers", "certificaterequests")
	}
	for _, kind := range kinds {
		create = append(create, "-f", filepath.Join(dir, "deploy", "crds", "cert-manager.io_"+kind+".yaml"))
	}
	if err := p.kubectl(ctx, create...); err != nil {
		return err
	}
	// kubectl wait fails for a CRD without conditions, so poll the API instead.
	var last error
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, cluster.Patience, true, func(ctx context.Context) (bool, error) {
		last = errors.Join(p.client.List(ctx, &cmapi.IssuerList{}), p.client.List(ctx, &cmapi.CertificateList{}))
		if p.o.CertManager {
			last = errors.Join(last, p.client.List(ctx, &cmapi.ClusterIssuerList{}), p.client.List(ctx, &cmapi.CertificateRequestList{}))
		}
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waiting until the API server serves the CRDs of cert-manager: %w", errors.Join(err, last))
	}
	if p.o.CertManager {
		p.certManager, err = p.o.Cluster.StartCertManager(ctx)
	}
	return err
}

// chooseSource selects the kustomization, or renders the chart.
func (p *Prebind) chooseSource(ctx context.Context) error {
	if p.o.Chart != "" {
		return p.renderChart(ctx)
	}
	p.source = p.kustomization(p.o.Kustomization)
	if p.o.Manifest != "" {
		p.source = []string{"-f", p.o.Manifest}
	}
	return nil
}

func (p *Prebind) kustomization(dir string) []string {
	if dir == "" {
		dir = manifests
	}
	return []string{"-k", filepath.Join(p.root, dir)}
}

// Apply applies another kustomization, relative to the root of the checkout. Replicas that start later have its configuration.
func (p *Prebind) Apply(ctx context.Context, kustomization string) error {
	p.source = p.kustomization(kustomization)
	return p.applyAgain(ctx)
}

// applyAgain applies the manifests for replicas that start later.
func (p *Prebind) applyAgain(ctx context.Context) error {
	for _, step := range []func(context.Context) error{p.applyManifests, p.readDeployment, p.MountVolumes} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (p *Prebind) applyManifests(ctx context.Context) error {
	if p.o.Apply != nil {
		return p.o.Apply(ctx)
	}
	apply := []string{"apply"}
	if p.o.Manifest != "" {
		apply = append(apply, "--server-side")
	}
	return p.kubectl(ctx, slices.Concat(apply, p.source, p.kept)...)
}

// AddComponents applies the manifests again, with additional components of config/webhook such as mutators/device-info. Like an
// operator, it uses an overlay of the shipped kustomization.
func (p *Prebind) AddComponents(ctx context.Context, components ...string) error {
	dir := p.file("overlay")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("install: %w", err)
	}
	overlay, err := overlayOf(filepath.Join(p.root, manifests), components, dir)
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), overlay, 0o600); err != nil {
		return fmt.Errorf("install: %w", err)
	}
	p.source = []string{"-k", dir}
	return p.applyManifests(ctx)
}

// overlayOf returns a kustomization for dir with the base and the components, which are directories below the base. Kustomize
// accepts only relative paths, and resolves links before `..`.
func overlayOf(base string, components []string, dir string) ([]byte, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	way, err := filepath.Rel(dir, base)
	if err != nil {
		return nil, err
	}
	way = filepath.ToSlash(way)
	below := make([]string, 0, len(components))
	for _, c := range components {
		below = append(below, path.Join(way, c))
	}
	return yaml.Marshal(map[string]any{
		"apiVersion": "kustomize.config.k8s.io/v1beta1",
		"kind":       "Kustomization",
		"resources":  []string{way},
		"components": below,
	})
}

// Uninstall removes Prebind as documented: first the webhook configuration, then all other objects. It stops replicas like
// deleted pods.
func (p *Prebind) Uninstall(ctx context.Context) error {
	deleted := make(chan error, 1)
	if p.o.Delete != nil {
		// It can wait for the pods, which end below.
		go func() { deleted <- p.o.Delete(ctx) }()
		if err := p.untilTerminating(ctx, deleted); err != nil {
			return err
		}
	} else {
		deleted <- nil
		if err := p.delete(ctx); err != nil {
			return err
		}
	}
	// The kubelet runs preStop before it sends SIGTERM.
	if err := errors.Join(cluster.Pause(ctx, p.pod.preStop), p.Stop()); err != nil {
		return err
	}
	// Delete the pods here, because no kubelet reports their end and the namespace waits for it.
	if err := p.kubectl(ctx, "delete", "pods", "--all", "--namespace="+Namespace, "--grace-period=0", "--force", "--wait=false"); err != nil {
		return err
	}
	return <-deleted
}

// delete unregisters Prebind, and begins to delete all objects.
func (p *Prebind) delete(ctx context.Context) error {
	unregister := p.Unregister
	if p.o.Chart != "" {
		unregister = p.runPreDelete
	}
	if err := unregister(ctx); err != nil {
		return err
	}
	return p.kubectl(ctx, append([]string{"delete", "--wait=false", "--ignore-not-found"}, p.source...)...)
}

// untilTerminating waits until the namespace is being deleted, or until the deletion has ended with an error.
func (p *Prebind) untilTerminating(ctx context.Context, deleted chan error) error {
	return wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, cluster.Patience, true, func(ctx context.Context) (bool, error) {
		select {
		case err := <-deleted:
			deleted <- err
			return true, err
		default:
		}
		var ns corev1.Namespace
		err := p.client.Get(ctx, client.ObjectKey{Name: Namespace}, &ns)
		return apierrors.IsNotFound(err) || ns.DeletionTimestamp != nil, client.IgnoreNotFound(err)
	})
}

// Unregister removes only the webhook configuration, with a command of prebind. The API server then binds pods without Prebind.
func (p *Prebind) Unregister(ctx context.Context) error {
	return p.runOnce(ctx, "unregister", "--kubeconfig="+p.o.Cluster.Kubeconfig())
}

// runOnce runs prebind and waits until it exits.
func (p *Prebind) runOnce(ctx context.Context, args ...string) error {
	if out, err := exec.CommandContext(ctx, p.o.Binary, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("prebind %v: %w\n%s", args, err, out)
	}
	return nil
}

// Register installs the webhook configuration again after Unregister.
func (p *Prebind) Register(ctx context.Context) error {
	if err := p.applyManifests(ctx); err != nil {
		return err
	}
	return p.IssueCertificates(ctx)
}

// LogDir returns the directory for the logs of the replicas.
func (p *Prebind) LogDir() string { return p.file("") }

func (p *Prebind) kubectl(ctx context.Context, args ...string) error {
	return p.o.Cluster.RunKubectl(ctx, "", args...)
}

func (p *Prebind) file(name string) string { return filepath.Join(p.o.Cluster.Dir(), "prebind", name) }

// writeFiles writes the files of a mounted Secret like the kubelet. All files change atomically, when the link ..data points to
// another directory.
func writeFiles(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	version, err := os.MkdirTemp(dir, "..version-")
	if err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(version, name), content, 0o600); err != nil {
			return err
		}
		err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	next := filepath.Join(dir, "..data_tmp")
	if err := os.Symlink(filepath.Base(version), next); err != nil {
		return err
	}
	return os.Rename(next, filepath.Join(dir, "..data"))
}
